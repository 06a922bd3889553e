"""Credit by turn, without a learned value: return-to-go of each turn against the same turn of the group's others.

A turn's return is its own reward and the discounted ones after it (verdicts with `rewards` by segment). Its baseline
is the mean return of the graded samples that have a turn of that number, as in multi-turn GRPO (arXiv 2505.11821, where
the turns are two); a turn that no other sample reached is compared with nothing and gets 0. `scale` divides by the
deviation at that number. With one reward at the end and one turn it is Dr. GRPO, or GRPO with `scale`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from temper.core.trace import Group
from temper.training.algorithms import by_turn, centre, discounted, masked, scaled, turns

needs: frozenset[str] = frozenset()


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    gamma: float = 1.0
    scale: bool = False


def advantages(groups: Sequence[Group], config: Config) -> list[list[np.ndarray]]:
    return [_credited(group, config) for group in groups]


def _credited(group: Group, config: Config) -> list[np.ndarray]:
    played = [turns(sample) for sample in group.samples]
    table = np.full((len(played), max((len(places) for places, _, _ in played), default=0)), np.nan)
    for row, sample, (places, earned, _) in zip(table, group.samples, played, strict=True):
        if not sample.verdict.masked:
            row[: len(places)] = discounted(earned, config.gamma)
    for column in table.T:
        column[:] = scaled(centre(column)) if config.scale else centre(column)
    return [
        masked(sample) if sample.verdict.masked else by_turn(sample, places, row[: len(places)])
        for row, sample, (places, _, _) in zip(table, group.samples, played, strict=True)
    ]
