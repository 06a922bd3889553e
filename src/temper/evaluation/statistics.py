"""The numbers: success rates with intervals, differences paired by task, pass@k. Pure functions over plain numbers.

All intervals are 95 %. They cover the choice of tasks and the sampling of answers, not the seed of a training run.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan, sqrt

import numpy as np
from msgspec import Struct

Z = 1.959963984540054  # the normal distribution's 97.5 % quantile


class Interval(Struct, frozen=True):
    """A mean over `n` tasks and where the true one lies with 95 % confidence."""

    mean: float
    low: float
    high: float
    n: int


def wilson(successes: float, n: int) -> Interval:
    """Wilson's score interval for a rate (Wilson 1927; method 3 of Newcombe, Statistics in Medicine 17, 1998).

    `successes` may be a sum of per-task means in [0, 1]: a mean of several answers varies less than one answer does, so
    that the interval is then too wide rather than too narrow. Nothing is known of no tasks: (nan, 0, 1).
    """
    if n == 0:
        return Interval(nan, 0.0, 1.0, 0)
    p = successes / n
    middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z * sqrt(p * (1 - p) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    return Interval(p, max(0.0, middle - half), min(1.0, middle + half), n)


def bootstrap(values: Sequence[float], seed: int = 0, resamples: int = 10_000) -> Interval:
    """Percentile bootstrap of a mean (Efron 1979), one value a task: for a comparison, the task's own difference.

    Nothing is known of no tasks: (nan, -inf, inf).
    """
    if not len(values):
        return Interval(nan, -inf, inf, 0)
    data, rng = np.asarray(values, np.float64), np.random.default_rng(seed)
    n, block = len(data), 500  # resamples at a time, so that thousands of tasks fit into memory
    means = [data[rng.integers(0, n, (block, n))].mean(axis=1) for _ in range(-(-resamples // block))]
    low, high = np.percentile(np.concatenate(means)[:resamples], (2.5, 97.5))
    return Interval(float(data.mean()), float(low), float(high), n)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The chance that k of n answers, drawn without putting back, hold a correct one (Chen et al. 2021, equation 1)."""
    if not 1 <= k <= n:
        raise ValueError(f"pass@k needs 1 <= k <= n answers, got k={k}, n={n}")
    return 1.0 - float(np.prod(1.0 - k / np.arange(n - correct + 1, n + 1)))
