"""RLOO (arXiv 2402.14740): reward minus the mean of the *other* graded samples of the group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from temper.core.trace import Group
from temper.training.algorithms import centred

needs: frozenset[str] = frozenset()


def advantages(groups: Sequence[Group]) -> list[np.ndarray]:
    return [_leave_one_out(centred(group)).astype(np.float32) for group in groups]


def _leave_one_out(a: np.ndarray) -> np.ndarray:
    """r - mean(others) = (r - mean) * n / (n - 1)."""
    n = np.count_nonzero(~np.isnan(a))
    return a * (n / max(n - 1, 1))
