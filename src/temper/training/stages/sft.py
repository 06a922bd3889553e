"""Supervised fine-tuning on demonstrations: packed, masked, one weight a trained token.

The order of the data is a pure function of the seed, so the number of steps taken is the whole cursor:

    for traces in plan(demonstrations, config, seed)[steps_done:]:
        metrics = step(trainer, traces)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from msgspec import Struct

from temper.core.config import Some
from temper.core.errors import ConfigError
from temper.core.trace import Trace
from temper.training.packing import Row
from temper.training.stages import path

if TYPE_CHECKING:
    from temper.training.trainer import Trainer

T = TypeVar("T")


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`batch`: demonstrations (or pairs) a step."""

    epochs: Some = 1
    batch: Some = 16


def plan(demonstrations: Sequence[T], config: Config, seed: int) -> list[list[T]]:
    """The batches of all steps: each epoch shuffled anew, epochs joined, the last batch may be smaller."""
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(len(demonstrations)) for _ in range(config.epochs)])
    return [[demonstrations[i] for i in order[at : at + config.batch]] for at in range(0, len(order), config.batch)]


def step(trainer: Trainer, items: Sequence[Trace]) -> dict[str, float]:
    """One update on these demonstrations. Raises ConfigError when none of them has a token to train on."""
    found = rows(items)
    if not found:
        raise ConfigError(
            f"none of these {len(items)} demonstrations has a trainable token: mark the assistant's tokens"
        )
    return trainer.step(trainer.pack(found)) | {"demonstrations": float(len(items))}


def rows(traces: Sequence[Trace]) -> list[Row]:
    """A row a demonstration, w_ce 1 / (trained tokens of all); those with nothing to train are left out."""
    paths = [(trace, path(trace)) for trace in traces]
    count = sum(int(p.trainable.sum()) for _, p in paths)
    return [
        Row(name=trace.id, ids=p.ids, streams={"w_ce": p.trainable / np.float32(count)})
        for trace, p in paths
        if p.trainable.any()
    ]
