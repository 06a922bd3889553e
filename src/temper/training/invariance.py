"""Does the loss stay what it is however it is computed? The same rows, cut and laid out in every way, on this machine.

The reference is one row a micro-batch, on one rank. Differences are the largest over all parameters, relative to the
largest gradient. Engine against trainer is compared by the caller, which has an engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace

from temper.core.trace import MicroBatch
from temper.models.policy import Policy
from temper.training.packing import Row, pack
from temper.training.parallel.sharded import spread
from temper.training.parallel.world import company
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
    """Micro-batching, packing, trees whole and split over micro-batches, layers computed again in the backward."""
    whole = sum(len(row.ids) for row in rows)
    longest = max(len(row.ids) for row in rows)
    reference = gradients(trainer, one_by_one(rows))
    ways = {
        "micro-batches of two": pack(rows, 2 * longest, share=False),
        "one packed micro-batch": pack(rows, whole, share=False),
        "a token tree": pack(rows, whole),
        "a token tree over micro-batches": pack(rows, longest + ANSWER),
    }
    for what, batches in ways.items():
        yield difference(what, trainer, batches, reference)
    again = Trainer(trainer.policy, replace(trainer.config, gradient_checkpointing=True))
    yield difference("the same with gradient checkpointing", again, ways["a token tree over micro-batches"], reference)


def over_ranks(trainer: Trainer, rows: Sequence[Row]) -> Iterator[Difference]:
    """Two ranks of this machine: a copy of the weights on each, then half of them (FSDP2; rank 0's is compared).

    The second one is a child process, which loads the model by its name.
    """
    batches = pack(rows, max(len(row.ids) for row in rows) + ANSWER)
    reference = gradients(trainer, one_by_one(rows))
    with company(2):
        for what, place in (("two ranks", lambda policy: policy), ("two ranks, sharded", spread)):
            policy = Policy(trainer.policy.base, trainer.policy.adapter, trainable=True)
            policy.load_trainable(trainer.policy.trainable())
            yield difference(what, Trainer(place(policy), trainer.config), batches, reference)


def one_by_one(rows: Sequence[Row]) -> list[MicroBatch]:
    return [batch for row in rows for batch in pack([row], len(row.ids))]


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


def gradients(trainer: Trainer, batches: Sequence[MicroBatch]) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss, and the gradient of each parameter."""
    loss = trainer.accumulate(batches)["loss"]
    return loss, {k: p.grad.clone() for k, p in trainer.optimizer.parameters.items() if p.grad is not None}


def difference(
    what: str,
    trainer: Trainer,
    batches: Sequence[MicroBatch],
    reference: tuple[float, dict[str, torch.Tensor]],
    limit: float = 0.0,
) -> Difference:
    """What these micro-batches give against a reference's `gradients`; `limit`: where it is above the dtype's."""
    loss, gradient = reference
    found_loss, found = gradients(trainer, batches)
    mine = {k: trainer.team.cut(f"gradient.{k}", g) for k, g in gradient.items()}
    largest, apart = (
        max(float(g.abs().max()) for g in each if g.numel())
        for each in (gradient.values(), [found[k] - mine[k] for k in mine])
    )
    limit = max(limit, TOLERANCE[next(iter(gradient.values())).dtype])
    return Difference(what, abs(found_loss - loss) / abs(loss), apart / largest, limit)
