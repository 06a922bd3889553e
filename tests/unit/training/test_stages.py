"""From traces and groups to rows: masks, counts, turns, order of the data."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.core.errors import ConfigError
from temper.core.trace import Segment, Trace
from temper.training.stages import path, rl, sft


@pytest.fixture(scope="session")
def demonstrations(group) -> list[Trace]:
    return [s.trace for name in "abc" for s in group(name, [1.0] * 4, turns=2).samples]


def weights(groups, **config) -> dict[float, list[float]]:
    """w_pg of every trained token by its advantage."""
    found: dict[float, list[float]] = {}
    for batch in rl.micro_batches(groups, rl.Config(algorithm="dr_grpo", **config), 4096)[0]:
        for w, a in zip(batch.streams["w_pg"], batch.streams["advantage"], strict=True):
            if w:
                found.setdefault(round(float(a), 3), []).append(float(w))
    return found


def lengths(group) -> list[int]:
    return [int(path(s.trace).trainable.sum()) for s in group.samples]


def test_the_count_holds_all_graded_samples_and_no_masked_one(group):
    groups = [group("a", [1.0, 0.0, None]), group("b", [1.0, 1.0])]
    count = sum(lengths(groups[0])[:2]) + sum(lengths(groups[1]))
    found = weights(groups)
    assert {a: len(w) for a, w in found.items()} == dict(zip([0.5, -0.5], lengths(groups[0])[:2], strict=True))
    assert all(w == pytest.approx([1 / count] * len(w)) for w in found.values())


def test_by_sequence_every_answer_weighs_the_same(group):
    found = weights([group("a", [1.0, 0.0])], aggregate="sequence")
    assert sorted(sum(w) for w in found.values()) == pytest.approx([0.5, 0.5])


def test_metrics_count_what_is_left_out(group):
    groups = [group("a", [1.0, 0.0, None]), group("b", [1.0, 1.0])]
    _, metrics = rl.micro_batches(groups, rl.Config(), 4096)
    expected = {"samples": 5, "samples_masked": 1, "samples_without_gradient": 2, "groups_without_gradient": 1}
    assert {k: metrics[k] for k in expected} == expected
    assert metrics["reward"] == 0.75


def test_observations_and_empty_turns_are_not_trained(group):
    (sample,) = group("a", [1.0], turns=3).samples
    trace = sample.trace
    p = path(trace)
    assert p.trainable.sum() == sum(len(s) for s in trace.segments if s.author == "policy")
    hollow = Trace(id="h", task="t", domain="d", seed=0, segments=(Segment.given((), []), Segment.given((), [], 0)))
    assert len(path(hollow).ids) == len(path(Trace(id="n", task="t", domain="d", seed=0)).ids) == 0


def test_a_sampled_first_token_has_nothing_to_be_predicted_from(group):
    (sample,) = group("a", [1.0]).samples
    alone = Trace(
        id="x", task="t", domain="d", seed=0, segments=(msgspec.structs.replace(sample.trace.segments[1], parent=-1),)
    )
    assert not path(alone).trainable[0]


@settings(max_examples=25)
@given(rewards=st.lists(st.lists(st.none() | st.sampled_from([0.0, 1.0]), min_size=1, max_size=5), max_size=4))
def test_any_groups_give_finite_streams(rewards, group):
    groups = [group(str(i), r) for i, r in enumerate(rewards)]
    batches, metrics = rl.micro_batches(groups, rl.Config(), 4096)
    assert metrics["samples"] == sum(map(len, rewards))
    assert all(np.isfinite(v).all() for b in batches for v in b.streams.values())


def test_the_plan_is_a_function_of_the_seed_and_drops_nothing(demonstrations):
    config = sft.Config(epochs=3, batch=5)
    steps = sft.plan(demonstrations, config, seed=4)
    assert [[t.id for t in s] for s in steps] == [[t.id for t in s] for s in sft.plan(demonstrations, config, seed=4)]
    assert [len(s) for s in steps] == [5] * 7 + [1]
    seen = sorted(t.id for s in steps for t in s)
    assert seen == sorted(t.id for t in demonstrations * 3)


def test_sft_lowers_the_loss_on_what_it_saw(trainer, demonstrations):
    learner = trainer(lr=5e-3)
    first, *_, last = [sft.step(learner, demonstrations)["loss"] for _ in range(12)]
    assert last < 0.9 * first


def test_sft_without_a_trainable_token_is_an_error(trainer):
    bare = Trace(id="b", task="t", domain="d", seed=0, segments=(Segment.given((), [5, 6]),))
    with pytest.raises(ConfigError, match="none of these 1 demonstrations"):
        sft.step(trainer(), [bare])
