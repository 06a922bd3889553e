"""Reinforcement learning, the pure part: groups of graded samples to micro-batches, and one update on them.

The global count of `pg` is over all graded samples, those of groups that teach nothing included; samples whose
advantage is 0 have no gradient and are therefore not computed, but counted in the metrics. Masked samples are in no
mean. Sampling, pacing and publishing belong to `scheduling` and `runs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from temper.core import registry
from temper.core.trace import Group, MicroBatch, Sample
from temper.training.packing import Row, pack
from temper.training.stages import Path, path
from temper.training.trainer import Trainer


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`aggregate`: the loss is a mean over tokens (DAPO), or over sequences of their means (GRPO, GSPO).

    `share`: compute a group's prompt once a micro-batch.
    """

    algorithm: str = "grpo"
    aggregate: Literal["token", "sequence"] = "token"
    share: bool = True


def step(trainer: Trainer, items: Sequence[Group], config: Config) -> dict[str, float]:
    """One update on these groups. The version rises also when they teach nothing."""
    batches, metrics = micro_batches(items, config, trainer.config.micro_tokens)
    return metrics | trainer.step(batches)


def micro_batches(groups: Sequence[Group], config: Config, cap: int) -> tuple[list[MicroBatch], dict[str, float]]:
    """Micro-batches with the streams of `pg`, and what is to be known about the groups."""
    advantages = registry.find("training.algorithms", config.algorithm).advantages(groups)
    graded = [
        (f"{g.task}/{n}", sample, float(a), path(sample.trace, sample.leaf))
        for n, (g, found) in enumerate(zip(groups, advantages, strict=True))
        for sample, a in zip(g.samples, found, strict=True)
        if not np.isnan(a)
    ]
    masks = [p.trainable & (p.versions >= 0) for _, _, _, p in graded]
    counts = np.array([mask.sum() for mask in masks], np.int64)
    shares = np.zeros(len(counts))
    if config.aggregate == "token":
        shares[:] = 1 / max(counts.sum(), 1)
    else:
        shares[counts > 0] = 1 / ((counts > 0).sum() * counts[counts > 0])
    rows = [
        _row(family, sample, a, p, mask * share)
        for (family, sample, a, p), mask, share in zip(graded, masks, shares, strict=True)
        if a != 0 and mask.any()
    ]
    metrics = {
        "samples": float(sum(len(g.samples) for g in groups)),
        "samples_masked": float(sum(len(g.samples) for g in groups) - len(graded)),
        "samples_without_gradient": float(len(graded) - len(rows)),
        "groups": float(len(groups)),
        "groups_without_gradient": float(sum(not np.nan_to_num(a).any() for a in advantages)),
    }
    if graded:
        metrics["reward"] = float(np.mean([sample.verdict.reward for _, sample, _, _ in graded]))
        metrics["answer_tokens"] = float(counts.mean())
    return pack(rows, cap, share=config.share), metrics


def _row(family: str, sample: Sample, advantage: float, p: Path, weight: np.ndarray) -> Row:
    streams = {
        "w_pg": weight,
        "advantage": np.full(len(p.ids), advantage),
        "behaviour": p.logprobs,
        "version": p.versions,
    }
    return Row(name=sample.trace.id, ids=p.ids, streams=streams, family=family)
