"""MaxRL (as in prime-rl): (reward - mean) / mean, which weighs rare successes up. For rewards that are not negative."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from temper.core.trace import Group
from temper.training.algorithms import centred, rewards

needs: frozenset[str] = frozenset()


def advantages(groups: Sequence[Group]) -> list[np.ndarray]:
    return [_by_mean(centred(group), rewards(group)).astype(np.float32) for group in groups]


def _by_mean(a: np.ndarray, r: np.ndarray) -> np.ndarray:
    mean = np.nansum(r) / max(np.count_nonzero(~np.isnan(r)), 1)
    return a / mean if mean > 0 else np.where(np.isnan(a), np.nan, 0.0)
