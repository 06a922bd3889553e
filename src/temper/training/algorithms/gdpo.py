"""GDPO (arXiv 2601.05242): each component of the reward is normalised within the group by itself, then they are added.

Normalising the sum instead lets the component with the largest deviation hide the others, and gives different
combinations of them the same advantage. The weighted sum is normalised over the batch (`over = "domain"`: over each
domain's samples), so that its size does not grow with the number of components. Components are the verdict's; one that
an answer did not come to (it was malformed, or wrong before it could be fast) is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct, field

from temper.core.errors import ConfigError
from temper.core.trace import Group
from temper.training.algorithms import centre, rewards, scaled, whiten

needs: frozenset[str] = frozenset()


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`weights` by component; empty: every component of the verdicts, weight 1 (and the reward where there is none)."""

    weights: dict[str, float] = field(default_factory=dict)
    over: Literal["batch", "domain"] = "batch"


def advantages(groups: Sequence[Group], config: Config) -> list[np.ndarray]:
    found = [_summed(group, config) for group in groups]
    pools: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for group, a in zip(groups, found, strict=True):
        key = group.domain if config.over == "domain" else ""
        pools.setdefault(key, []).append((a, np.flatnonzero(~np.isnan(a))))
    for pool in pools.values():
        whiten(pool, mean=False)
    return [a.astype(np.float32) for a in found]


def _summed(group: Group, config: Config) -> np.ndarray:
    r = rewards(group)
    graded = [s.verdict for s in group.samples if not s.verdict.masked]
    weights = config.weights or dict.fromkeys(sorted({name for v in graded for name in v.components}), 1.0)
    if not weights:
        return scaled(centre(r))
    total = np.where(np.isnan(r), np.nan, 0.0)
    for name, weight in weights.items():
        if any(v.score >= 1 and name not in v.components for v in graded):
            raise ConfigError(f"task {group.task}: a full score has no component {name!r} that gdpo is to normalise")
        values = [np.nan if s.verdict.masked else s.verdict.components.get(name, 0.0) for s in group.samples]
        total = total + weight * scaled(centre(np.array(values, np.float64)))
    return total
