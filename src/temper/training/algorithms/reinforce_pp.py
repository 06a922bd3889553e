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

from temper.core.trace import Group, Sample
from temper.training.algorithms import by_turn, centred, length, turns, whiten
from temper.training.algorithms.estimators import discounted

needs: frozenset[str] = frozenset()


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    gamma: float = 1.0
    baseline: Literal["none", "group"] = "none"
    over: Literal["batch", "domain"] = "batch"


def advantages(groups: Sequence[Group], config: Config) -> list[list[np.ndarray]]:
    found: list[list[np.ndarray]] = []
    pools: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for group in groups:
        entries = []
        for sample, centred_reward in zip(group.samples, centred(group), strict=True):
            places, _, _ = turns(sample)
            where = np.concatenate(places) if places else np.zeros(0, np.int64)
            if sample.verdict.masked:
                entries.append(np.full(length(sample), np.nan, np.float32))
                continue
            if config.baseline == "group":
                values = by_turn(sample, places, [centred_reward] * len(places))
            else:
                values = _returns(sample, config.gamma)
            pools.setdefault(group.domain if config.over == "domain" else "", []).append((values, where))
            entries.append(values)
        found.append(entries)
    for pool in pools.values():
        whiten(pool)
    return found


def _returns(sample: Sample, gamma: float) -> np.ndarray:
    """Return-to-go at each trained token (T,), a turn's reward at its last one."""
    places, earned, _ = turns(sample)
    found = np.zeros(length(sample), np.float32)
    if places:
        given = [np.append(np.zeros(len(here) - 1), r) for here, r in zip(places, earned, strict=True)]
        found[np.concatenate(places)] = discounted(np.concatenate(given), gamma)
    return found
