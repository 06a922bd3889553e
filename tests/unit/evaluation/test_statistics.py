"""The numbers agree with published ones, and intervals cover what they claim to."""

from functools import cache, partial
from math import comb, exp, inf, isnan, lgamma, log

import numpy as np
import pytest

from temper.evaluation.statistics import difference, lost_by_chance, pass_at_k, student, trend, wilson

SIZES = (5, 8, 12, 20, 30, 50, 100, 200, 500)


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
    assert isnan(difference([], []).mean)
    assert (difference([], []).low, difference([], []).high) == (-1.0, 1.0)
    assert (difference([2.0], [3.0], rates=False).low, difference([2.0], [3.0], rates=False).high) == (-inf, inf)


def test_pass_at_k_is_the_closed_form():
    """Chen et al. 2021 (arXiv 2107.03374), equation 1: 1 - C(n-c, k) / C(n, k)."""
    for n in (1, 2, 6, 20):
        for correct in range(n + 1):
            for k in range(1, n + 1):
                assert pass_at_k(n, correct, k) == pytest.approx(1 - comb(n - correct, k) / comb(n, k), abs=1e-12)
    with pytest.raises(ValueError, match="k=3, n=2"):
        pass_at_k(2, 1, 3)


def test_students_quantiles_are_those_of_the_tables():
    """Fisher and Yates, table III, two-sided 5 %."""
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 120: 1.980}
    assert {n: student(n) for n in table} == pytest.approx(table, rel=2e-3)


def test_a_difference_is_near_the_published_interval_of_paired_rates():
    """Complete response before and after therapy (Cavo et al. 2012): 6 gained, 16 lost, 139 the same; Newcombe's square
    and add in Fagerland, Lydersen and Laake, Statistics in Medicine 33 (2014)."""
    found = difference([0.0] * 6 + [1.0] * 16 + [1.0] * 139, [1.0] * 6 + [0.0] * 16 + [1.0] * 139)
    assert found.mean == pytest.approx(-0.0621, abs=6e-5)
    assert (found.low, found.high) == pytest.approx((-0.1186, -0.0046), abs=5e-3)


@pytest.mark.parametrize("n", SIZES)
def test_the_interval_of_a_rate_covers_the_truth_95_times_in_100_on_average(n):
    """Exactly, by the binomial distribution. At single rates it may be 83 (Brown, Cai and DasGupta 2001)."""
    truths = np.linspace(0.005, 0.995, 199)
    found = [wilson(k, n) for k in range(n + 1)]
    inside = np.array([[i.low <= p <= i.high for i in found] for p in truths])
    chances = np.array([[exp(_choose(n, k) + k * log(p) + (n - k) * log(1 - p)) for k in range(n + 1)] for p in truths])
    covered = (inside * chances).sum(axis=1)
    assert covered.mean() >= 0.945
    assert covered.min() >= 0.83


@pytest.mark.parametrize("n", SIZES)
def test_the_interval_of_a_difference_covers_the_truth_93_times_in_100_at_every_rate_of_change(n):
    """By simulation, 4,000 times each: tasks gained, lost and unchanged."""
    rng = np.random.default_rng(n)
    interval = cache(partial(_of_counts, n))
    for gain, loss in ((0, 0.05), (0.1, 0), (0.2, 0), (0.02, 0.02), (0.1, 0.3), (0.4, 0.1), (0.5, 0.45), (0.8, 0.1)):
        drawn = rng.multinomial(n, (gain, loss, 1 - gain - loss), 4000).tolist()
        covered = np.mean([_holds(interval(gained, lost), gain - loss) for gained, lost, _ in drawn])
        assert covered >= 0.93, (gain, loss)


@pytest.mark.parametrize("n", SIZES)
def test_means_over_several_answers_a_task_and_losses_are_covered_as_well(n):
    """By simulation, 1,000 times: 4 answers a task of its own difficulty; losses with light and heavy tails."""
    rng = np.random.default_rng(n)
    before = rng.beta(1, 1, (1000, n))
    after = before + (1 - before) * 0.2  # from 0.5 to 0.6 on average
    tried = [rng.binomial(4, p) / 4 for p in (before, after)]
    changes = {"normal": rng.normal(0.1, 1, (1000, n)), "Laplace": rng.laplace(0.1, 1, (1000, n))}
    assert np.mean([_holds(difference(a, b), 0.1) for a, b in zip(*tried, strict=True)]) >= 0.93
    for name, drawn in changes.items():
        assert np.mean([_holds(difference(0 * c, c, rates=False), 0.1) for c in drawn]) >= 0.93, name


def test_a_trend_is_the_least_squares_line_and_covers_its_slope():
    """Anscombe's first set (The American Statistician 27, 1973): slope 0.5, its standard error 0.118."""
    x = [10, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    y = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    found = trend(x, y)
    assert found.mean == pytest.approx(0.500, abs=5e-4)
    assert found.high - found.mean == pytest.approx(2.262 * 0.1179, abs=1e-3)


def test_losses_by_chance_are_the_binomial_tail():
    """McNemar, exact: 7 lost of 8 that changed, (8 + 1) / 256; none that changed prove nothing."""
    assert lost_by_chance(7, 1) == 9 / 256
    assert lost_by_chance(0, 0) == 1.0
    assert lost_by_chance(0, 5) == 1.0


def _of_counts(n, gained, lost):
    same = n - gained - lost
    return difference([0.0] * gained + [1.0] * lost + [0.0] * same, [1.0] * gained + [0.0] * lost + [0.0] * same)


def _holds(interval, truth):
    return interval.low - 1e-12 <= truth <= interval.high + 1e-12


def _choose(n, k):
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
