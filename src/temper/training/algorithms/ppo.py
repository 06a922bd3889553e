"""PPO's advantages (arXiv 1707.06347): generalised advantage estimates over a learned value of each state.

The value of a state is the trainer's scalar head at the token before, learnt by the component `value` from
`targets`. A step is a token, or (`level = "turn"`) a whole turn, whose value is that of its first token, whose tokens
share one advantage, and between which nothing decays: for tools and dialogues, where a turn is the action.
Advantages are normalised over the batch, as is usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from temper.core.trace import Group, Sample
from temper.training.algorithms import by_token, by_turn, gae, length, masked, turns, whiten

needs: frozenset[str] = frozenset({"values"})


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`gamma`: discount a step. `lam`: 1 for returns minus values, 0 for one step. `normalise`: over the batch."""

    gamma: float = 1.0
    lam: float = 1.0
    level: Literal["token", "turn"] = "token"
    normalise: bool = True


def advantages(
    groups: Sequence[Group], config: Config, values: Sequence[Sequence[np.ndarray]]
) -> list[list[np.ndarray]]:
    found, pool = [], []
    for group, known in zip(groups, values, strict=True):
        entries = [estimate(sample, config, v) for sample, v in zip(group.samples, known, strict=True)]
        found.append(entries)
        for sample, entry in zip(group.samples, entries, strict=True):
            if not sample.verdict.masked:
                pool.append((entry, by_token(*turns(sample)[:2])[0]))
    if config.normalise:
        whiten(pool)
    return found


def targets(groups: Sequence[Group], config: Config, values: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """What the value of each state should be: its estimate plus its advantage (T,) (the lambda-return)."""
    return [
        [_target(sample, config, v) for sample, v in zip(group.samples, known, strict=True)]
        for group, known in zip(groups, values, strict=True)
    ]


def estimate(sample: Sample, config: Config, values: np.ndarray) -> np.ndarray:
    """Advantage at each trained token (T,), not normalised; NaN where the sample is masked."""
    if sample.verdict.masked:
        return masked(sample)
    places, earned, _ = turns(sample)
    if config.level == "turn":
        first = np.array([values[here[0]] for here in places])
        return by_turn(sample, places, gae(earned, first, config.gamma, config.lam))
    found = np.zeros(length(sample), np.float32)
    every, given = by_token(places, earned)
    found[every] = gae(given, values[every], config.gamma, config.lam)
    return found


def _target(sample: Sample, config: Config, values: np.ndarray) -> np.ndarray:
    base = values
    if config.level == "turn":
        places, _, _ = turns(sample)
        base = by_turn(sample, places, [values[here[0]] for here in places])
    return (estimate(sample, config, values) + base).astype(np.float32)
