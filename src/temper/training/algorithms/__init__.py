"""How rewards become advantages: one short module an algorithm (`core.protocols.Algorithm`), found by its name.

What they share is here. A masked sample is NaN and in no mean; a group that teaches nothing (fewer than two graded
samples, or all rewards equal) is 0 everywhere. Credit by token or by turn does not live here.
"""

from __future__ import annotations

import numpy as np

from temper.core.trace import Group


def rewards(group: Group) -> np.ndarray:
    """Reward of each sample, float64 (n,), NaN where its verdict is masked."""
    return np.array([np.nan if s.verdict.masked else s.verdict.reward for s in group.samples], np.float64)


def centred(group: Group) -> np.ndarray:
    """Reward minus the mean of the group's graded samples, float64 (n,); exactly 0 where nothing is to be learnt."""
    r = rewards(group)
    graded = r[~np.isnan(r)]
    if len(graded) < 2 or graded.min() == graded.max():
        return np.where(np.isnan(r), np.nan, 0.0)
    return r - graded.mean()
