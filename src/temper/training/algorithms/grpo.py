"""GRPO (arXiv 2402.03300): reward centred and divided by the group's standard deviation.

The deviation is the unbiased one, as in TRL and verl.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from temper.core.trace import Group
from temper.training.algorithms import centred

needs: frozenset[str] = frozenset()


def advantages(groups: Sequence[Group]) -> list[np.ndarray]:
    return [_scaled(centred(group)).astype(np.float32) for group in groups]


def _scaled(a: np.ndarray) -> np.ndarray:
    return a / (np.nanstd(a, ddof=1) + 1e-6) if np.nanmax(np.abs(a), initial=0.0) > 0 else a
