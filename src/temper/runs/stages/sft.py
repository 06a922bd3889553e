"""Supervised fine-tuning on gold demonstrations, played through the real environments and packed without padding.

The held-out measure is the loss on gold answers to held-out tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from temper.core.config import Count, Some
from temper.core.protocols import SamplingParams
from temper.core.trace import Trace
from temper.runs.answers import answered, held
from temper.runs.demonstrations import Shown, by_share, played
from temper.runs.fitting import fit
from temper.training import config as training
from temper.training.stages import sft

if TYPE_CHECKING:
    from temper.runs.workshop import Workshop
    from temper.training.trainer import Trainer


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """demonstrations: over all domains, by their shares. held: held-out tasks for the loss."""

    demonstrations: Some = 400
    held: Count = 32
    data: sft.Config = sft.Config()
    trainer: training.Config = training.Config()
    checkpoint_every: Some = 20


async def run(shop: Workshop, config: Config) -> None:
    from temper.training.trainer import Trainer

    learner = Trainer(shop.policy, config.trainer)
    learner.version = shop.version
    counts = by_share(shop, config.demonstrations)
    demonstrations = await played(shop, counts)
    for domain, count in counts.items():
        shop.run.log("shown", Shown).append(Shown(domain, count))
    apart = await unseen(shop, "sft", config.held)
    update = partial(shop.computed, sft.step, learner)
    steps = sft.plan(demonstrations, config.data, shop.recipe.seed)
    measure = ("loss", "lower", partial(losses, learner, apart))
    await fit(shop, "sft", learner, steps, update, config.checkpoint_every, measure)
    await shop.publish(learner.version)


async def unseen(shop: Workshop, stage: str, count: int) -> list[Trace]:
    """The domains' own answers to held-out tasks."""
    groups = await answered(shop, f"{stage}-held", held(shop, count), 0, SamplingParams(), gold=True)
    return [s.trace for g in groups for s in g.samples if not s.verdict.masked]


def losses(learner: Trainer, traces: Sequence[Trace]) -> list[float]:
    """Mean cross-entropy of each trace's trained tokens."""
    batches = [learner.pack(sft.rows([trace])) for trace in traces]
    return [learner.evaluate(batch)["loss_ce"] for batch in batches if batch]
