"""REINFORCE++ (arXiv 2501.03262): discounted returns by token, normalised over the whole batch and not by group.

`baseline = "group"` subtracts the group's mean reward first (its variant for many answers a prompt); a group that
teaches nothing is then 0 before the normalisation. `over = "domain"` takes mean and deviation over each domain's
tokens, so that a domain with large rewards does not outweigh the others. The paper's KL term is the component `kl`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from temper.core.trace import Group
from temper.training.algorithms import by_token, centred, discounted, masked, turns, whiten

needs: frozenset[str] = frozenset()


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    gamma: float = 1.0
    baseline: Literal["none", "group"] = "none"
    over: Literal["batch", "domain"] = "batch"


def advantages(groups: Sequence[Group], config: Config) -> list[list[np.ndarray]]:
    found: list[list[np.ndarray]] = []
    pools: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for group in groups:
        found.append([])
        for sample, reward in zip(group.samples, centred(group), strict=True):
            values = masked(sample)
            if not sample.verdict.masked:
                where, given = by_token(*turns(sample)[:2])
                values[:] = 0
                values[where] = reward if config.baseline == "group" else discounted(given, config.gamma)
                pools.setdefault(group.domain if config.over == "domain" else "", []).append((values, where))
            found[-1].append(values)
    for pool in pools.values():
        whiten(pool)
    return found
