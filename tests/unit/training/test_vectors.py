"""Losses and advantages against numbers that other projects publish in their own tests, each named.

The pacing gate's vectors are with `scheduling`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from temper.core.trace import Group, Sample, Trace, Verdict
from temper.training.algorithms import discounted, dr_grpo, gae, maxrl, rloo
from temper.training.losses import Corrections, cispo, dppo, gspo, importance, kl, ppo_clip
from temper.training.packing import spread
from temper.training.stages.rl import nearness

NEMO = "NeMo-RL tests/unit/algorithms/test_loss_functions.py"
SKYRL = "SkyRL tests/train/algorithms/test_losses.py"
AREAL = "AReaL tests/test_cispo_loss.py"
SKYRL_RETURNS = "SkyRL tests/backends/skyrl_train/utils/test_ppo_utils.py"
AREAL_GAE = "AReaL tests/test_ppo_gae.py"
VERL = "verl tests/trainer/ppo/test_rollout_corr.py"

A = [1.0, -1.0, 2.0]
OLD, NEW = [-1.0, -1.0, -1.0], [-1.69315, -1.0, -0.59453]
GEN = [-0.5, -1.5, -0.8]
DUAL = {"advantage": [1.0, -1.0, -4.0], "behaviour": [-1.0, -1.0, -3.0]}
DUAL_NEW = [-1.69315, -1.0, -0.69741]
AREAL_LOGP = [-1.0, -2.0, -0.3, -1.2, -0.7]  # the sixth token is masked
AREAL_STREAMS = {
    "advantage": [1.0, -2.0, 0.5, 3.0, -1.0],
    "behaviour": [p - d for p, d in zip(AREAL_LOGP, [-2.0, -0.5, 0.0, 0.3, 1.5], strict=True)],
}


def values(module, config, logprobs: list[float], **streams: list[float]) -> np.ndarray:
    put = {k: torch.tensor(v, dtype=torch.float64) for k, v in streams.items()}
    put["weight"] = torch.ones(len(logprobs), dtype=torch.float64)
    return module.loss(torch.tensor(logprobs, dtype=torch.float64), put, config)[0].numpy()


def ppo(**settings) -> ppo_clip.Config:
    return ppo_clip.Config(low=0.2, high=0.2, **{"cap": math.inf, **settings})


@pytest.mark.parametrize(
    ("source", "module", "config", "logprobs", "streams", "expected"),
    [
        (NEMO, ppo_clip, ppo(), NEW, {"advantage": A, "behaviour": OLD}, -0.63333),
        (NEMO, cispo, cispo.Config(low=0.2, high=0.2), NEW, {"advantage": A, "behaviour": OLD}, 0.59380),
        (
            NEMO,
            cispo,
            cispo.Config(low=0.2, high=0.2, cap=math.inf),
            NEW,
            {"advantage": A, "proximal": OLD, "behaviour": GEN},
            0.11369,
        ),
        (
            NEMO,
            gspo,
            gspo.Config(low=0.2, high=0.2),
            NEW,
            {"advantage": A, "behaviour": OLD, "sequence": [0, 0, 0]},
            -0.60571,
        ),
        # REINFORCE is CISPO on policy
        (NEMO, cispo, cispo.Config(), [-0.5, -1, -1.5], {"advantage": A, "behaviour": [-0.5, -1, -1.5]}, 0.83333),
        (
            NEMO,
            ppo_clip,
            ppo(keep=(0.5, 5.0)),
            OLD,
            {"advantage": A, "proximal": OLD, "behaviour": [-0.5, -3.5, -0.8]},
            -0.74800,
        ),
        (
            NEMO,
            ppo_clip,
            ppo(cap=5.0),
            OLD,
            {"advantage": A, "proximal": OLD, "behaviour": [-0.5, -3.5, -0.8]},
            0.91867,
        ),
        (AREAL, cispo, cispo.Config(low=0.2, high=0.28), AREAL_LOGP, AREAL_STREAMS, 0.29240),
        (AREAL, cispo, cispo.Config(low=1.0, high=4.0), AREAL_LOGP, AREAL_STREAMS, -0.08370),
    ],
)
def test_mean_of_policy_gradient_loss(source, module, config, logprobs, streams, expected):
    assert values(module, config, logprobs, **streams).mean() == pytest.approx(expected, abs=2e-5), source


def test_dual_clip():
    assert values(ppo_clip, ppo(dual=3.0), DUAL_NEW, **DUAL) == pytest.approx([-0.5, 1, 12], abs=1e-4), SKYRL


def test_cispo_sum():
    found = values(cispo, cispo.Config(low=0.2, high=0.2), DUAL_NEW, **DUAL).sum()
    assert found == pytest.approx(-2.99305, abs=1e-4), SKYRL


def test_kl_estimators():
    expected = {"k1": [-1, 14, 29], "k2": [0.5, 98, 420.5], "k3": [0.71828, 13, 28]}
    for estimator, numbers in expected.items():
        found = values(kl, kl.Config(estimator=estimator), [-1.0] * 3, reference=[0.0, -15.0, -30.0])
        assert found == pytest.approx(numbers, abs=1e-5), NEMO


def test_icepop_weights():
    weights = torch.tensor([0.4, 0.8, 6.0])
    streams = {"behaviour": torch.zeros(3), "proximal": weights.log()}
    kept = importance(weights.log(), streams, Corrections(cap=math.inf, keep=(0.5, 5.0)))[1]
    assert kept.tolist() == pytest.approx([0, 0.8, 0]), VERL
    assert kept.sum() ** 2 / (3 * kept.square().sum()) == pytest.approx(1 / 3), VERL


def graded(rewards: list[float]) -> Group:
    trace = Trace(id="t", task="t", domain="d", seed=0)
    verdicts = [Verdict(trace="t", verifier="v", status="graded", blame="policy", score=r) for r in rewards]
    return Group("t", "d", tuple(Sample(trace, v) for v in verdicts))


@pytest.mark.parametrize(
    ("source", "algorithm", "rewards", "expected"),
    [
        (SKYRL, rloo, [[6, 3], [9, 12], [1]], [[3, -3], [-3, 3], [0]]),
        (SKYRL, dr_grpo, [[6, 3], [9, 12]], [[1.5, -1.5], [-1.5, 1.5]]),
        ("prime-rl tests/unit/orchestrator/test_advantage.py", maxrl, [[1, 0, 0, 0]], [[3, -1, -1, -1]]),
    ],
)
def test_advantages(source, algorithm, rewards, expected):
    found = algorithm.advantages([graded(r) for r in rewards])
    assert [a.tolist() for a in found] == expected, source


def test_balance():
    lengths = [3, 2, 1, 4]
    bins = spread([n * n for n in lengths], lengths, cap=6)
    assert sorted(sum(lengths[i] ** 2 for i in b) for b in bins) == [14, 16], (
        "TRL tests/experimental/test_async_grpo_trainer.py"
    )


def test_token_sum_is_independent_of_ranks():
    loss = np.array([[1.0, 2, 30], [4, 50, 6]])
    mask = np.array([[1, 1, 0], [1, 0, 1]])
    weight = mask / mask.sum()  # the global count
    per_rank = [
        (loss[r] * weight[r]).sum() for r in range(2)
    ]  # summed over ranks; verl multiplies by dp = 4, not averages
    assert 4 * mask.sum() * sum(per_rank) == pytest.approx(52), "verl test_loss_aggregation_on_cpu.py"


def test_returns_and_generalised_advantages():
    r = np.array([1.0, 2.0, 3.0])
    assert discounted(r, 0.5).tolist() == [2.75, 3.5, 3], SKYRL_RETURNS
    values = np.array([0.5, 1.0, 1.5])
    assert (gae(r, values, 1.0, 0.5) + values).tolist() == [3.625, 4.25, 3], SKYRL_RETURNS


@pytest.mark.parametrize(
    ("rewards", "gamma", "lam", "expected"),
    [([1, 2], 1.0, 0.5, [2, 2]), ([1, 2], 1.0, 0.0, [1, 2]), ([3, 6], 0.5, 0.25, [3.75, 6])],
)
def test_generalised_advantages_by_turn(rewards, gamma, lam, expected):
    assert gae(np.array(rewards, float), np.zeros(2), gamma, lam).tolist() == expected, AREAL_GAE


def test_interpolated_proximal_policy():
    # v 0 sampled, 2 is trained, 1 is proximal; the clip's anchor is the current log-prob minus the log-ratio
    now = torch.tensor([-1.5, -2.5, -3.5], dtype=torch.float64)
    behaviour = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)
    near = torch.from_numpy(nearness(np.zeros(3), 2))
    log_ratio, weight = importance(now, {"behaviour": behaviour, "nearness": near}, Corrections(cap=math.inf))
    assert (now - log_ratio).tolist() == [-1.25, -2.25, -3.25], "AReaL tests/test_prox_approx.py"
    assert weight.tolist() == pytest.approx([math.exp(-0.25)] * 3)


def test_dppo_masks_by_total_variation():
    new, old, a = [-0.1, -2, -0.7, -1.2], [-0.5, -1.6, -0.7, -0.6], [1.0, 1.0, -1.0, -1.0]
    found = values(dppo, dppo.Config(), new, advantage=a, behaviour=old)
    assert found == pytest.approx([0.00016, -0.67016, 1, 0.00036], abs=1e-5), "formula of prime-rl trainer/rl/loss.py"
