"""RAFT: only what succeeded is imitated; the advantage is the reward itself, and a failure weighs nothing.

No baseline, so that a group of successes teaches as well: it holds the policy to what works. Dong et al., arXiv
2304.06767; as a baseline for reasoning, Xiong et al., arXiv 2504.11343.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from temper.core.trace import Group
from temper.training.algorithms import rewards

needs: frozenset[str] = frozenset()


def advantages(groups: Sequence[Group]) -> list[np.ndarray]:
    return [rewards(group) for group in groups]
