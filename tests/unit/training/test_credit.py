"""Algorithms that give credit by token, turn, component or branch, against their papers' formulas and closed forms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.core.errors import ConfigError
from temper.core.trace import Group, Sample, Segment, Trace, Verdict
from temper.training.algorithms import (
    branches,
    dapo,
    dr_grpo,
    gdpo,
    grpo,
    length,
    ppo,
    reinforce_pp,
    turn_credit,
    turns,
)


def episode(
    rewards: Sequence[float] | None, sampled: Sequence[int] = (3,), name: str = "t", score: float = 0.0, **verdict
) -> Sample:
    """Two given tokens, then turns of so many sampled tokens, each followed by one given token."""
    segments = [Segment.given((), [5, 6])]
    for n in sampled:
        turn = Segment.given((), np.arange(n), parent=len(segments) - 1)
        turn.trainable[:], turn.versions[:] = True, 0
        segments += [turn, Segment.given((), [7], parent=len(segments))]
    by_segment = {} if rewards is None else {2 * i + 1: r for i, r in enumerate(rewards)}
    graded = Verdict(
        trace=name, verifier="v", status="graded", blame="policy", score=score, rewards=by_segment, **verdict
    )
    return Sample(Trace(id=name, task="t", domain="d", seed=0, segments=tuple(segments)), graded)


def masked(sample: Sample) -> Sample:
    return Sample(sample.trace, Verdict.ruled("verifier-crash", sample.trace.id, "v"))


def group(*samples: Sample, domain: str = "d") -> Group:
    return Group("t", domain, samples)


def test_a_reward_of_the_environment_belongs_to_the_turn_before_it():
    sample = episode(None, [2, 1])
    verdict = Verdict(
        trace="t", verifier="v", status="graded", blame="policy", rewards={0: 9.0, 2: 1.0, 3: 2.0, 4: 3.0}
    )
    places, earned, segments = turns(Sample(sample.trace, verdict))
    assert [p.tolist() for p in places] == [[2, 3], [5]]
    assert earned.tolist() == [1, 5]  # what came before the first turn is nobody's
    assert segments == [1, 3]
    assert turns(episode(None, [2, 1], score=0.5))[1].tolist() == [0, 0.5]


def test_overlong_punishment():
    # DAPO, equation 13, with L_max = 100 and L_cache = 40
    config = dapo.Config(limit=100, buffer=40)
    assert dapo.overlong(np.array([0, 60, 70, 80, 100, 300]), config).tolist() == [0, 0, -0.25, -0.5, -1, -1]


def test_dapo_is_grpo_without_a_limit_and_asks_for_new_groups():
    samples = [episode(None, [n], score=s) for n, s in [(1, 1.0), (5, 0.0), (9, 0.0)]]
    assert dapo.resample
    assert (
        dapo.advantages([group(*samples)], dapo.Config())[0].tolist() == grpo.advantages([group(*samples)])[0].tolist()
    )
    long = dapo.advantages([group(*samples)], dapo.Config(limit=9, buffer=4))[0]
    assert long[2] < long[1] < long[0]
    alike = group(episode(None, [1], score=1.0), episode(None, [9], score=1.0))
    assert not dapo.advantages([alike], dapo.Config(limit=9, buffer=4))[0].any()


def test_reinforce_pp_normalises_over_all_tokens_of_the_batch():
    groups = [group(episode(None, [2], score=1.0)), group(episode(None, [2], score=0.0), masked(episode(None)))]
    found = reinforce_pp.advantages(groups, reinforce_pp.Config())
    tokens = np.array([1.0, 1.0, 0.0, 0.0])
    expected = (tokens - tokens.mean()) / tokens.std(ddof=1)
    assert np.concatenate([found[0][0][2:4], found[1][0][2:4]]) == pytest.approx(expected, abs=1e-5)
    assert np.isnan(found[1][1]).all()
    assert not found[0][0][[0, 1, 4]].any()


def test_reinforce_pp_by_domain_does_not_let_one_domain_outweigh():
    wide = group(episode(None, [1], score=0.0), episode([100.0], [1]), domain="wide")
    narrow = group(episode(None, [1], score=0.0), episode(None, [1], score=1.0), domain="narrow")
    found = reinforce_pp.advantages([wide, narrow], reinforce_pp.Config(over="domain", baseline="group"))
    assert found[0][1][2] == pytest.approx(found[1][1][2], rel=1e-4)


@pytest.mark.parametrize(("lam", "expected"), [(0.5, [2, 2, 2, 2]), (0.0, [1, 1, 2, 2])])
def test_ppo_by_turn(lam, expected):
    # AReaL tests/test_ppo_gae.py: rewards [0, 1, 0, 2] in two turns of two tokens, values 0
    sample = episode([1.0, 2.0], [2, 2])
    config = ppo.Config(lam=lam, level="turn", normalise=False)
    (found,) = ppo.advantages([group(sample)], config, [[np.zeros(length(sample))]])
    assert found[0][turns(sample)[0][0]].tolist() + found[0][turns(sample)[0][1]].tolist() == expected


def test_ppo_by_token_skips_what_the_environment_wrote():
    # SkyRL tests/backends/skyrl_train/utils/test_ppo_utils.py, with a given token between the steps
    sample = episode([1.0, 2.0, 3.0], [1, 1, 1])
    values = np.full(length(sample), 99.0)
    values[[2, 4, 6]] = [0.5, 1.0, 1.5]
    config = ppo.Config(lam=0.5, normalise=False)
    (goals,) = ppo.targets([group(sample)], config, [[values]])
    assert goals[0][[2, 4, 6]].tolist() == [3.625, 4.25, 3]
    (normal,) = ppo.advantages([group(sample)], ppo.Config(lam=0.5), [[values]])
    assert normal[0][[2, 4, 6]].mean() == pytest.approx(0, abs=1e-6)
    assert normal[0][[2, 4, 6]].std(ddof=1) == pytest.approx(1, abs=1e-5)


def test_turn_credit_with_one_turn_is_dr_grpo():
    samples = [episode(None, [2], score=s) for s in (1.0, 0.0, 0.25)]
    (plain,) = dr_grpo.advantages([group(*samples)])
    (found,) = turn_credit.advantages([group(*samples)], turn_credit.Config())
    assert [a[2] for a in found] == pytest.approx(plain.tolist())


def test_turn_credit_blames_the_turn_that_failed():
    good, bad, short = episode([1.0, 1.0], [1, 1]), episode([1.0, 0.0], [1, 1]), episode([2.0], [1])
    (found,) = turn_credit.advantages([group(good, bad, short, masked(good))], turn_credit.Config(gamma=0.0))
    assert found[0][[2, 4]].tolist() == pytest.approx([-1 / 3, 0.5])
    assert found[1][[2, 4]].tolist() == pytest.approx([-1 / 3, -0.5])
    assert found[2][2] == pytest.approx(2 / 3)
    assert np.isnan(found[3]).all()


def test_gdpo_tells_apart_what_the_sum_confuses():
    # the paper's motivating case: (0, 1) against (0, 2) of two binary rewards is (-1, 1) / sqrt 2 for GRPO either way
    def of(*pairs):
        return group(*(episode([sum(p)], score=max(p), components={"a": p[0], "b": p[1]}) for p in pairs))

    one, two = of((0.0, 0.0), (1.0, 0.0)), of((0.0, 0.0), (1.0, 1.0))
    plain = [grpo.advantages([g])[0][1] for g in (one, two)]
    assert plain[0] == pytest.approx(plain[1], rel=1e-4)
    found = gdpo.advantages([one, two], gdpo.Config())
    assert found[1][1] == pytest.approx(2 * found[0][1], rel=1e-4)
    weighed = gdpo.advantages([two, two], gdpo.Config(weights={"a": 1.0}))
    assert weighed[0].tolist() == weighed[1].tolist()
    with pytest.raises(ConfigError, match="no component 'c'"):
        gdpo.advantages([one], gdpo.Config(weights={"c": 1.0}))


def test_gdpo_counts_a_component_that_an_answer_did_not_come_to_as_nothing():
    """A verdict on a malformed answer has no components, one on a wrong answer none for how fast it was."""
    answers = [{}, {"right": 0.5}, {"right": 1.0, "fast": 0.0}, {"right": 1.0, "fast": 1.0}]
    whole = [{"right": 0.0, "fast": 0.0} | components for components in answers]
    few, full = (group(*(episode(None, name=str(n), components=c) for n, c in enumerate(a))) for a in (answers, whole))
    nothing = group(*(episode(None, name=str(n)) for n in range(4)))
    for config in (gdpo.Config(), gdpo.Config(weights={"right": 1.0, "fast": 0.5})):
        found, expected = gdpo.advantages([few, nothing], config), gdpo.advantages([full, nothing], config)
        np.testing.assert_array_equal(found[0], expected[0])
        assert not found[1].any()


def forked(rewards: Sequence[float], stem: str = "f") -> list[Sample]:
    """One first turn, then as many second turns from the state after it as there are rewards."""
    root = episode(None, [2], name=stem).trace
    segments = list(root.segments)
    leaves = []
    for _ in rewards:
        turn = Segment.given((), [1, 2, 3], parent=2)
        turn.trainable[:], turn.versions[:] = True, 0
        leaves.append(len(segments))
        segments.append(turn)
    trace = Trace(id=stem, task="t", domain="d", seed=0, segments=tuple(segments))
    return [
        Sample(trace, Verdict(trace=stem, verifier="v", status="graded", blame="policy", score=r, leaf=leaf), leaf)
        for r, leaf in zip(rewards, leaves, strict=True)
    ]


def test_a_branch_point_is_worth_the_mean_of_its_branches():
    (found,) = branches.advantages([group(*forked([1.0, 0.0, 0.5, 0.5]), episode(None, [2], score=0.0, name="x"))])
    # the fork is worth 0.5, the start (0.5 + 0) / 2; the shared turn's +0.25 is split over its four samples
    assert [a[2] for a in found[:4]] == pytest.approx([0.0625] * 4)
    assert [a[5] for a in found[:4]] == pytest.approx([0.5, -0.5, 0.0, 0.0])
    assert found[4][2] == pytest.approx(-0.25)


@given(rewards=st.lists(st.none() | st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=6))
def test_without_forks_branches_are_dr_grpo(rewards):
    samples = [episode(None, [1, 2], score=r or 0.0, name=str(i)) for i, r in enumerate(rewards)]
    samples = [masked(s) if r is None else s for s, r in zip(samples, rewards, strict=True)]
    (plain,) = dr_grpo.advantages([group(*samples)])
    (found,) = branches.advantages([group(*samples)])
    for a, b in zip(found, plain, strict=True):
        assert a[[2, 4, 5]].tolist() == pytest.approx([b] * 3, nan_ok=True, abs=1e-6)


def test_an_episode_without_a_sampled_token_gets_no_credit():
    empty = episode(None, [])
    for found in (
        reinforce_pp.advantages([group(empty)], reinforce_pp.Config()),
        turn_credit.advantages([group(empty, empty)], turn_credit.Config()),
        branches.advantages([group(empty, empty)]),
        ppo.advantages([group(empty)], ppo.Config(), [[np.zeros(2)]]),
    ):
        assert not found[0][0].any()
