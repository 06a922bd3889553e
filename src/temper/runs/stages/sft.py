"""Supervised fine-tuning on gold demonstrations, played through the real environments and packed without padding."""

from __future__ import annotations

from msgspec import Struct

from temper.runs.demonstrations import Shown, by_share, played
from temper.runs.workshop import Workshop
from temper.training import trainer
from temper.training.stages import sft


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """demonstrations: over all domains, by their shares."""

    demonstrations: int = 400
    data: sft.Config = sft.Config()
    trainer: trainer.Config = trainer.Config()
    checkpoint_every: int = 20


async def run(shop: Workshop, config: Config) -> None:
    learner = trainer.Trainer(shop.policy, config.trainer)
    saved = shop.latest("sft")
    if saved:
        await shop.computed(learner.load, saved / "trainer")
        shop.event("resumed", "sft", f"at step {learner.version}")
    counts = by_share(shop, config.demonstrations)
    demonstrations = await played(shop, counts)
    for domain, count in counts.items():
        shop.run.log("shown", Shown).append(Shown(domain, count))
    steps = sft.plan(demonstrations, config.data, shop.recipe.seed)
    for traces in steps[learner.version :]:
        values = await shop.computed(sft.step, learner, traces, config.data)
        values["tokens_per_second"] = values["tokens"] / values["seconds"]
        shop.metrics("sft", learner.version, values)
        shop.progress(learner.version, len(steps))
        if learner.version % config.checkpoint_every == 0 or learner.version == len(steps):
            with shop.run.checkpoint(f"sft-{learner.version:06d}") as folder:
                await shop.computed(learner.save, folder / "trainer")
    await shop.publish(learner.version)
