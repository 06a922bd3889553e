"""DAPO (arXiv 2503.14476): GRPO's advantages with soft overlong punishment, and groups that teach nothing replaced.

The punishment (its equation 13) is 0 up to limit - buffer sampled tokens, falls to -1 at `limit`, and stays there. A
group whose rewards are equal before it teaches nothing, whatever its lengths. The decoupled clip is `ppo_clip`'s
`low` and `high`, the mean over tokens the stage's `aggregate`; both are the defaults.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from temper.core.trace import Group
from temper.training.algorithms import centre, rewards, scaled, turns

needs: frozenset[str] = frozenset()
resample = True


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`limit`: sampled tokens that an answer may have, 0 for no punishment; `buffer`: those over which it grows."""

    limit: int = 0
    buffer: int = 4096

    def __post_init__(self) -> None:
        if self.limit and not 0 < self.buffer <= self.limit:
            raise ValueError(f"expected 0 < buffer <= limit, got buffer {self.buffer} and limit {self.limit}")


def advantages(groups: Sequence[Group], config: Config) -> list[np.ndarray]:
    return [_advantages(group, config).astype(np.float32) for group in groups]


def overlong(tokens: np.ndarray, config: Config) -> np.ndarray:
    """What is added to the reward of answers of so many tokens (n,)."""
    if not config.limit:
        return np.zeros(len(tokens))
    return np.clip((config.limit - config.buffer - tokens) / config.buffer, -1.0, 0.0)


def _advantages(group: Group, config: Config) -> np.ndarray:
    r = rewards(group)
    flat = centre(r)
    if not np.nan_to_num(flat).any():
        return flat
    sampled = np.array([sum(map(len, turns(s)[0])) for s in group.samples])
    return scaled(centre(r + overlong(sampled, config)))
