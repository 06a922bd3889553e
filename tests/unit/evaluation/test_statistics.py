"""The numbers agree with published ones, and intervals cover what they claim to."""

from math import comb, inf, isnan

import numpy as np
import pytest

from temper.evaluation.statistics import bootstrap, pass_at_k, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0000, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_published_intervals(successes, n, low, high):
    """Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3."""
    found = wilson(successes, n)
    assert (found.low, found.high) == pytest.approx((low, high), abs=6e-5)
    assert (found.mean, found.n) == (successes / n, n)


def test_nothing_is_known_of_no_tasks():
    assert isnan(wilson(0, 0).mean)
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    assert (bootstrap([]).low, bootstrap([]).high) == (-inf, inf)


def test_pass_at_k_is_the_closed_form():
    """Chen et al. 2021 (arXiv 2107.03374), equation 1: 1 - C(n-c, k) / C(n, k)."""
    for n in (1, 2, 6, 20):
        for correct in range(n + 1):
            for k in range(1, n + 1):
                assert pass_at_k(n, correct, k) == pytest.approx(1 - comb(n - correct, k) / comb(n, k), abs=1e-12)
    with pytest.raises(ValueError, match="k=3, n=2"):
        pass_at_k(2, 1, 3)


def test_the_bootstrap_of_a_mean_agrees_with_the_normal_interval_and_its_seed_repeats_it():
    values = np.random.default_rng(1).normal(0.3, 1.0, 400)
    half = 1.96 * values.std() / 20
    found = bootstrap(values, seed=3)
    assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.1 * half)
    assert bootstrap(values, seed=3) == found
    assert bootstrap(values, seed=4) != found


def test_intervals_cover_the_truth_about_95_times_in_100():
    """300 made-up evaluations of 100 tasks; the truth is known. Binomial noise of the count itself: +- 2.5 %."""
    rng = np.random.default_rng(0)
    rates = changes = 0
    for seed in range(300):
        before = rng.random(100) < 0.2
        after = before | (rng.random(100) < 0.25)  # 0.2 + 0.8 * 0.25 = 0.4: paired, as the same tasks are
        found = bootstrap(after.astype(float) - before, seed, resamples=1000)
        changes += found.low <= 0.2 <= found.high
        rate = wilson(after.sum(), 100)
        rates += rate.low <= 0.4 <= rate.high
    assert 0.90 <= changes / 300 <= 0.99
    assert 0.92 <= rates / 300 <= 0.99
