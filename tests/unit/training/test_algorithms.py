"""Advantages: what is masked, what teaches nothing, and what every algorithm of the family must satisfy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.core import registry
from temper.training.algorithms import grpo

ALGORITHMS = ["grpo", "dr_grpo", "rloo", "maxrl"]
REWARDS = st.lists(st.none() | st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=1, max_size=8)


@pytest.mark.parametrize("name", ALGORITHMS)
@given(rewards=REWARDS)
def test_masked_are_nan_and_in_no_mean(name, rewards, group):
    find = registry.find("training.algorithms", name).advantages
    (whole,) = find([group("t", rewards)])
    kept = [r for r in rewards if r is not None]
    assert whole.dtype == np.float32
    assert np.isnan(whole).tolist() == [r is None for r in rewards]
    if kept:
        assert whole[~np.isnan(whole)].tolist() == find([group("t", kept)])[0].tolist()


@pytest.mark.parametrize("name", ALGORITHMS)
@given(rewards=REWARDS)
def test_zero_sum_and_in_the_order_of_rewards(name, rewards, group):
    (a,) = registry.find("training.algorithms", name).advantages([group("t", rewards)])
    known = [(r, x) for r, x in zip(rewards, a, strict=True) if r is not None]
    assert sum(x for _, x in known) == pytest.approx(0, abs=1e-4)
    if len({r for r, _ in known}) < 2:
        assert all(x == 0 for _, x in known)
    else:
        assert [x for _, x in sorted(known)] == sorted(x for _, x in known)


def test_grpo_divides_by_the_unbiased_deviation(group):
    # TRL and verl: (r - mean) / (std + eps) with torch.std, which is unbiased
    (a,) = grpo.advantages([group("t", [1.0, 0.0, 0.0, 0.0])])
    assert a == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
