"""Pairs of answers to one task, a better and a worse one: what reward models and the DPO family learn from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from temper.core.trace import Group, Sample
from temper.training.packing import Row
from temper.training.stages import path


class Pair(Struct, frozen=True, eq=False):
    """Two samples of one task. `name` is unique in a stage."""

    name: str
    chosen: Sample
    rejected: Sample

    @property
    def sides(self) -> tuple[tuple[Sample, float], ...]:
        """Each sample with its sign in the margin."""
        return (self.chosen, 1.0), (self.rejected, -1.0)


def pairs(groups: Sequence[Group]) -> list[Pair]:
    """The best graded sample of each group against its worst; groups whose rewards are all equal give none.

    Of equal rewards the first counts. Samples without a trained token are not compared.
    """
    found = []
    for group in groups:
        graded = [s for s in group.samples if not s.verdict.masked and path(s.trace, s.leaf).sampled.any()]
        if not graded:
            continue
        best = max(graded, key=lambda s: s.verdict.reward)
        worst = min(graded, key=lambda s: s.verdict.reward)
        if best.verdict.reward > worst.verdict.reward:
            found.append(Pair(f"{best.trace.id}/{worst.trace.id}", best, worst))
    return found


def ends(batch: Sequence[Pair]) -> list[Row]:
    """A row an answer, whose one prediction is made where the answer ends: what a scalar head is asked.

    Streams of the component `reward`: its weight 1 / (answers of all pairs), `pair`, `chosen`.
    """
    rows = []
    for number, pair in enumerate(batch):
        for sample, sign in pair.sides:
            ids = path(sample.trace, sample.leaf).ids
            n = len(ids) + 1
            streams = {
                "w_reward": np.append(np.zeros(n - 1), 1 / (2 * len(batch))),
                "pair": np.full(n, number),
                "chosen": np.full(n, sign),
            }
            row = Row(name=sample.trace.id, ids=np.append(ids, 0), streams=streams, family=pair.name)
            rows.append(row)
    return rows
