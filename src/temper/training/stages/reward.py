"""Reward models: a scalar head over the policy, trained on pairs by Bradley-Terry, with a report of its calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from temper.core.errors import ConfigError
from temper.training.stages.pairs import Pair, ends

if TYPE_CHECKING:
    from temper.training.trainer import Trainer

BINS = 10


class Calibration(Struct, frozen=True, kw_only=True):
    """How far the model's chance that the chosen answer is better can be believed, over held-out pairs.

    accuracy: pairs in the right order. log_loss: of the chance; 0.693 is a coin's. error: expected calibration error
    (arXiv 1706.04599), over `bins` of (confidence of the preferred side, share of them that is right, pairs).
    """

    pairs: int
    accuracy: float
    log_loss: float
    error: float
    bins: list[tuple[float, float, int]]


def step(trainer: Trainer, items: Sequence[Pair]) -> dict[str, float]:
    """One update on these pairs."""
    return trainer.step(trainer.pack(ends(items), together=True)) | {"pairs": float(len(items))}


def margins(trainer: Trainer, items: Sequence[Pair]) -> np.ndarray:
    """Score of the chosen answer minus that of the rejected one, float64 (pairs,)."""
    if trainer.scalar is None:
        raise ConfigError("a reward model needs the trainer's scalar = true")
    values = np.array([s.values[-1] for s in trainer.score(ends(items)) if s.values is not None], np.float64)
    return values[::2] - values[1::2]


def calibration(gaps: np.ndarray) -> Calibration:
    """From margins (n,): sigmoid(margin) is the model's chance that the chosen answer is the better one."""
    confidence = 1 / (1 + np.exp(-np.abs(gaps)))  # of the side that it prefers, in [0.5, 1]
    right = gaps > 0
    at = np.minimum(((confidence - 0.5) * 2 * BINS).astype(int), BINS - 1)
    bins = [
        (float(confidence[at == b].mean()), float(right[at == b].mean()), int((at == b).sum()))
        for b in range(BINS)
        if (at == b).any()
    ]
    return Calibration(
        pairs=len(gaps),
        accuracy=float(right.mean()),
        log_loss=float(np.logaddexp(0, -gaps).mean()),
        error=sum(n * abs(c - r) for c, r, n in bins) / len(gaps),
        bins=bins,
    )
