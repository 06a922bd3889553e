"""GRPO (arXiv 2402.03300): reward centred and divided by the group's standard deviation.

The deviation is the unbiased one, as in TRL and verl.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from temper.core.trace import Group
from temper.training.algorithms import centred, scaled

needs: frozenset[str] = frozenset()


def advantages(groups: Sequence[Group]) -> list[np.ndarray]:
    return [scaled(centred(group)).astype(np.float32) for group in groups]
