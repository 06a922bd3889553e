"""Policy-gradient losses where the vectors do not reach: gradients, huge ratios, masks, stale tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from temper.core import registry
from temper.training.losses import cispo, gspo, ppo_clip

FLOATS = st.floats(-1e4, 0, width=32)


def run(module, config, logp, behaviour, advantage, **streams):
    logp = torch.tensor(logp, requires_grad=True)
    put = {"behaviour": torch.tensor(behaviour), "advantage": torch.tensor(advantage), "weight": torch.ones(len(logp))}
    put |= {"sequence": torch.zeros(len(logp))} | {k: torch.tensor(v) for k, v in streams.items()}
    values, diagnostics = module.loss(logp, put, config)
    (values * put["weight"]).sum().backward()
    return values.detach(), logp.grad, diagnostics


@pytest.mark.parametrize("name", ["ppo_clip", "cispo", "gspo"])
@given(logp=st.lists(FLOATS, min_size=1, max_size=4), behaviour=FLOATS, advantage=st.floats(-10, 10, width=32))
def test_huge_ratios_stay_finite(name, logp, behaviour, advantage):
    module = registry.find("training.losses", name)
    n = len(logp)
    values, grad, _ = run(module, module.Config(), logp, [behaviour] * n, [advantage] * n)
    assert values.isfinite().all()
    assert grad.isfinite().all()


def test_gradient_of_a_stale_token_is_the_truncated_ratio():
    # r = 4 under a negative advantage is what the clip leaves open: its weight is cut at the cap, its gradient kept
    _, grad, diagnostics = run(ppo_clip, ppo_clip.Config(cap=2.0), [-1.0], [-1.0 - math.log(4)], [-1.0])
    assert grad.item() == pytest.approx(2.0)
    assert not diagnostics["clip_fraction"].item()


@pytest.mark.parametrize(("advantage", "log_ratio"), [(1.0, 0.5), (-1.0, -0.5)])
def test_a_clipped_token_has_no_gradient(advantage, log_ratio):
    _, grad, diagnostics = run(ppo_clip, ppo_clip.Config(), [-1.0], [-1.0 - log_ratio], [advantage])
    assert grad.item() == 0
    assert diagnostics["clip_fraction"].item()


def test_cispo_keeps_the_gradient_of_every_token():
    _, grad, _ = run(cispo, cispo.Config(), [-1.0, -1.0], [-3.0, -1.0], [1.0, 1.0])
    assert grad.tolist() == pytest.approx([-1.28, -1.0])


def test_icepop_masks_by_the_stored_behaviour_logprob():
    _, grad, diagnostics = run(ppo_clip, ppo_clip.Config(keep=(0.5, 5.0)), [-1.0, -1.0], [-4.0, -1.1], [-1.0, -1.0])
    assert grad[0] == 0
    assert grad[1] > 0
    assert diagnostics["masked_fraction"].tolist() == [True, False]


def test_gspo_ratio_is_of_each_sequence_and_its_trained_tokens():
    logp, behaviour = [-1.0, -1.0, -1.0, -9.0], [-1.2, -1.4, -1.0, -1.0]
    config = gspo.Config(low=0.9, high=9.0)
    values, _, _ = run(
        gspo, config, logp, behaviour, [1.0] * 4, sequence=[0.0, 0.0, 1.0, 1.0], weight=[1.0, 1.0, 1.0, 0.0]
    )
    assert values.tolist() == pytest.approx([-math.exp(0.3), -math.exp(0.3), -1, -1])
