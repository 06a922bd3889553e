"""Does the loss stay what it is however it is computed? The same rows, cut and laid out in every way, on this machine.

The reference is one row a micro-batch. Differences are the largest over all parameters, relative to the largest
gradient. Engine against trainer is compared by the caller, which has an engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from msgspec import Struct

from temper.core.trace import MicroBatch
from temper.training.packing import Row, pack
from temper.training.trainer import Trainer

PROMPT, ANSWER, TURN = 64, 16, 24
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 1e-1}


class Difference(Struct, frozen=True):
    """What was compared, how far loss and gradient are from the reference's (relative), and how far they may be."""

    what: str
    loss: float
    gradient: float
    limit: float

    @property
    def fine(self) -> bool:
        return max(self.loss, self.gradient) <= self.limit


def differences(trainer: Trainer, rows: Sequence[Row]) -> Iterator[Difference]:
    """Micro-batching, packing, trees whole and split over micro-batches."""
    whole = sum(len(row.ids) for row in rows)
    longest = max(len(row.ids) for row in rows)
    loss, gradient = _gradient(trainer, [batch for row in rows for batch in pack([row], whole)])
    limit = TOLERANCE[next(iter(gradient.values())).dtype]
    largest = max(float(g.abs().max()) for g in gradient.values())
    ways = {
        "micro-batches of two": pack(rows, 2 * longest, share=False),
        "one packed micro-batch": pack(rows, whole, share=False),
        "a token tree": pack(rows, whole),
        "a token tree over micro-batches": pack(rows, longest + ANSWER),
    }
    for what, batches in ways.items():
        found_loss, found = _gradient(trainer, batches)
        apart = max(float((found[k] - gradient[k]).abs().max()) for k in gradient)
        yield Difference(what, abs(found_loss - loss) / abs(loss), apart / largest, limit)


def sample(vocabulary: int, seed: int = 0) -> list[Row]:
    """A group of four answers to one prompt, two of which go on in a second turn; stale, with advantages."""
    rng = np.random.default_rng(seed)
    prompt, first = rng.integers(3, vocabulary, PROMPT), rng.integers(3, vocabulary, ANSWER)
    rows = []
    for number in range(4):
        forked = number >= 2
        middle = np.append(first, rng.integers(3, vocabulary, TURN)) if forked else np.zeros(0, np.int64)
        ids = np.concatenate([prompt, middle, rng.integers(3, vocabulary, ANSWER)])
        weight = np.zeros(len(ids))
        weight[-ANSWER:] = 1 / (4 * ANSWER)
        if forked:
            weight[PROMPT : PROMPT + ANSWER] = 1 / (4 * ANSWER)
        streams = {
            "w_pg": weight,
            "advantage": np.full(len(ids), (-1.0) ** number * (1 + number)),
            "behaviour": rng.normal(-np.log(vocabulary), 0.1, len(ids)),
            "version": np.zeros(len(ids)),
        }
        rows.append(Row(name=f"row {number}", ids=ids, streams=streams, family="group"))
    return rows


@torch.no_grad()
def stir(trainer: Trainer, seed: int = 0) -> None:
    """Small values in the adapter's B, which is 0 at first, so that A has gradients too."""
    rng = np.random.default_rng(seed)
    for name, p in trainer.policy.trainable().items():
        if name.endswith("lora_B"):
            p.copy_(p.new_tensor(rng.normal(0, 0.02, p.shape)))


def _gradient(trainer: Trainer, batches: Sequence[MicroBatch]) -> tuple[float, dict[str, torch.Tensor]]:
    loss = trainer.accumulate(batches)["loss"]
    found = {k: p.grad.clone() for k, p in trainer.policy.trainable().items() if p.grad is not None}
    return loss, found
