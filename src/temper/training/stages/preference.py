"""Preference alignment: the DPO family on pairs, with the reference's log-probs measured once and kept as a stream.

Which loss it is (`dpo`, `ipo`, `simpo`, `kto`) is the trainer's setting `losses.preference`. Both answers of a pair
share their prompt and stand in one micro-batch. KTO takes the answers one by one, and before each step measures its
common point, the KL of both policies, on answers moved to the next pair's prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from temper.core.trace import Sample
from temper.training.packing import Row
from temper.training.stages import Path, path
from temper.training.stages.pairs import Pair

if TYPE_CHECKING:
    from temper.training.scoring import Weights
    from temper.training.trainer import Trainer

References = Mapping[str, np.ndarray]  # by `key` of a sample: log-probs (n,)


def step(
    trainer: Trainer, items: Sequence[Pair], references: References, initial: Weights | None = None
) -> dict[str, float]:
    """One update on these pairs. `initial`: the reference's weights, which KTO alone needs again."""
    loss, _ = trainer.losses["preference"]
    anchor = _anchor(trainer, items, initial) if "anchor" in loss.streams else None
    found = rows(items, references, anchor)
    return trainer.step(trainer.pack(found, together=True)) | {"pairs": float(len(items))}


def reference(trainer: Trainer, items: Sequence[Pair]) -> dict[str, np.ndarray]:
    """Log-probs of every answer under the policy as it is now."""
    sides = {key(s): _row(s, path(s.trace, s.leaf), "", 1.0) for pair in items for s, _ in pair.sides}
    return {name: s.logprobs for name, s in zip(sides, trainer.score(list(sides.values())), strict=True)}


def rows(items: Sequence[Pair], references: References, anchor: float | None = None) -> list[Row]:
    """Two rows a pair. Each token weighs 1 / (pairs * tokens of the pair), or, with `anchor` (KTO), 1 / (answers *
    tokens of the answer), so that a loss which stands at every token counts once."""
    found = []
    for number, pair in enumerate(items):
        paths = [path(s.trace, s.leaf) for s, _ in pair.sides]
        counts = [int(p.sampled.sum()) for p in paths]
        for (sample, sign), p, count in zip(pair.sides, paths, counts, strict=True):
            share = 1 / (len(items) * sum(counts)) if anchor is None else 1 / (2 * len(items) * count)
            row = _row(sample, p, pair.name, share)
            row.streams["pair"] = np.full(len(p.ids), number)
            row.streams["chosen"] = np.full(len(p.ids), sign)
            row.streams["reference"] = references[key(sample)]
            if anchor is not None:
                row.streams["anchor"] = np.full(len(p.ids), anchor)
            found.append(row)
    return found


def key(sample: Sample) -> str:
    return f"{sample.trace.id}/{sample.leaf}"


def _row(sample: Sample, p: Path, family: str, share: float) -> Row:
    return Row(name=sample.trace.id, ids=p.ids, streams={"w_preference": p.sampled * share}, family=family)


def _anchor(trainer: Trainer, items: Sequence[Pair], initial: Weights | None) -> float:
    """max(0, mean log-ratio of mismatched answers), as in KTO's paper, section 4.1; 0 for a batch of one pair."""
    from temper.training.scoring import lent

    if len(items) < 2:
        return 0.0
    paths = [path(s.trace, s.leaf) for pair in items for s, _ in pair.sides]
    moved = []
    for answer, other in zip(paths, paths[2:] + paths[:2], strict=True):
        prompt = other.ids[: int(np.argmax(other.sampled))]
        own = answer.ids[int(np.argmax(answer.sampled)) :]
        weight = np.append(np.zeros(len(prompt)), answer.sampled[-len(own) :])
        moved.append(Row(name="mismatched", ids=np.append(prompt, own), streams={"w_preference": weight}))
    cap = max(trainer.config.micro_tokens, *(len(row.ids) for row in moved))  # no backward holds what they need
    now = trainer.score(moved, cap)
    with lent(trainer.policy, initial):
        before = trainer.score(moved, cap)
    return max(0.0, float(np.mean([(a.logprobs - b.logprobs).sum() for a, b in zip(now, before, strict=True)])))
