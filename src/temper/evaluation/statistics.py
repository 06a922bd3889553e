"""The numbers: success rates with intervals, differences paired by task, trends, pass@k. Pure, over plain numbers.

One rule: a rate has Wilson's interval, a mean of differences (and a slope) Student's, and differences of rates count
two imaginary tasks, one gained and one lost. A bootstrap is not among them: over fewer than about 30 tasks, or few
that changed, its intervals cover far less than they claim. All intervals are 95 %. They cover the choice of tasks and
the sampling of answers, not the seed of a training run.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, inf, nan, sqrt

import numpy as np
from msgspec import Struct

Z = 1.959963984540054  # the normal distribution's 97.5 % quantile
_STUDENT = {1: 12.7062, 2: 4.3027}  # of Student's t, by degrees of freedom


class Interval(Struct, frozen=True):
    """A mean over `n` tasks and where the true one lies with 95 % confidence."""

    mean: float
    low: float
    high: float
    n: int


def wilson(successes: float, n: int) -> Interval:
    """Wilson's score interval for a rate (Wilson 1927; method 3 of Newcombe, Statistics in Medicine 17, 1998).

    `successes` may be a sum of per-task means in [0, 1]: a mean of several answers varies less than one answer does, so
    that the interval is then too wide rather than too narrow. It covers 95 % on average over all true rates, and at
    single ones near 0 or 1 as little as 83 % (Brown, Cai and DasGupta, Statistical Science 16, 2001). Nothing is known
    of no tasks: (nan, 0, 1).
    """
    if n == 0:
        return Interval(nan, 0.0, 1.0, 0)
    p = successes / n
    middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z * sqrt(p * (1 - p) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    return Interval(p, max(0.0, middle - half), min(1.0, middle + half), n)


def difference(before: Sequence[float], after: Sequence[float], rates: bool = True) -> Interval:
    """Mean of after - before, one value of each a task. `rates`: they are shares of successes, in [0, 1].

    Student's interval. For rates it is over two tasks more, one gained and one lost (after Bonett and Price, Journal of
    Educational and Behavioral Statistics 37, 2012): so few tasks, or few that changed, do not look certain.
    """
    changes = np.subtract(after, before).astype(np.float64)
    n = len(changes)
    seen = np.append(changes, (1.0, -1.0)) if rates else changes
    if len(seen) < 2:
        return Interval(float(seen.mean()) if n else nan, -inf, inf, n)
    half = student(len(seen) - 1) * float(seen.std(ddof=1)) / sqrt(len(seen))
    low, high = float(seen.mean()) - half, float(seen.mean()) + half
    if rates:
        low, high = max(-1.0, low), min(1.0, high)
    return Interval(float(changes.mean()) if n else nan, low, high, n)


def trend(xs: Sequence[float], ys: Sequence[float]) -> Interval:
    """Slope of the least-squares line through at least three points, with Student's interval."""
    x, y = (np.asarray(values, np.float64) - np.mean(values) for values in (xs, ys))
    slope = float(x @ y / (x @ x))
    error = sqrt(float(np.square(y - slope * x).sum()) / (len(x) - 2) / float(x @ x))
    half = student(len(x) - 2) * error
    return Interval(slope, slope - half, slope + half, len(x))


def lost_by_chance(lost: int, gained: int) -> float:
    """The chance that so many or more of the tasks that changed were lost, were a loss as likely as a gain.

    McNemar's test (Psychometrika 12, 1947), exact and one-sided.
    """
    n = lost + gained
    return sum(comb(n, k) for k in range(lost, n + 1)) / 2**n


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The chance that k of n answers, drawn without putting back, hold a correct one (Chen et al. 2021, equation 1)."""
    if not 1 <= k <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n answers, got k={k}, n={n}")
    return 1.0 - float(np.prod(1.0 - k / np.arange(n - correct + 1, n + 1)))


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t (Abramowitz and Stegun 26.7.5, from 3 degrees on within 0.2 %)."""
    terms = (
        (Z**3 + Z) / 4,
        (5 * Z**5 + 16 * Z**3 + 3 * Z) / 96,
        (3 * Z**7 + 19 * Z**5 + 17 * Z**3 - 15 * Z) / 384,
        (79 * Z**9 + 776 * Z**7 + 1482 * Z**5 - 1920 * Z**3 - 945 * Z) / 92160,
    )
    return _STUDENT.get(freedom) or Z + sum(term / freedom ** (n + 1) for n, term in enumerate(terms))
