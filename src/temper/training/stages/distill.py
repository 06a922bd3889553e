"""On-policy distillation: the policy's own answers, each token pulled to a teacher's distribution there.

The teacher is any engine whose `score` gives log-probs: its likeliest `k` tokens (all of them: the full distribution).
Sampling and the teacher belong to `runs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from temper.core.trace import Sample
from temper.training.packing import Row
from temper.training.stages import path

if TYPE_CHECKING:
    from temper.training.trainer import Trainer


class Taught(Struct, frozen=True, eq=False):
    """A sampled answer, and the teacher's likeliest tokens after each but its last: ids and log-probs (n - 1, k)."""

    sample: Sample
    ids: np.ndarray
    logprobs: np.ndarray


def step(trainer: Trainer, items: Sequence[Taught]) -> dict[str, float]:
    """One update on these answers."""
    return trainer.step(trainer.pack(rows(items))) | {"answers": float(len(items))}


def rows(items: Sequence[Taught]) -> list[Row]:
    """A row an answer, w_distill 1 / (sampled tokens of all); answers without one are left out."""
    paths = [path(item.sample.trace, item.sample.leaf) for item in items]
    count = sum(int(p.sampled.sum()) for p in paths)
    found = []
    for item, p in zip(items, paths, strict=True):
        if not p.sampled.any():
            continue
        logq = item.logprobs - np.logaddexp.reduce(item.logprobs, axis=1, keepdims=True)
        first = np.zeros((1, logq.shape[1]))  # nothing predicts the first token
        q = np.exp(logq)
        streams = {
            "w_distill": p.sampled / np.float32(count),
            "teacher_ids": np.concatenate([first, item.ids]),
            "teacher_q": np.concatenate([first, q]),
            "teacher_entropy": np.append(0.0, -np.where(q > 0, q * logq, 0.0).sum(1)),
        }
        found.append(Row(name=item.sample.trace.id, ids=p.ids, streams=streams))
    return found
