"""Dr. GRPO (arXiv 2503.20783): reward minus the group's mean.

GRPO's division by the deviation is left out, since it favours the easiest and the hardest tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from temper.core.trace import Group
from temper.training.algorithms import centred

needs: frozenset[str] = frozenset()


def advantages(groups: Sequence[Group]) -> list[np.ndarray]:
    return [centred(group).astype(np.float32) for group in groups]
