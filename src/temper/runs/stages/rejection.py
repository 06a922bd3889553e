"""Rejection-sampling fine-tuning: the policy answers, and is fine-tuned on those of its answers that a verifier passed.

Also called RFT or best-of-n distillation (arXiv 2308.01825). The held-out measure is the loss on the
answers to held-out tasks that passed before the stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from temper.core.config import Count, Some
from temper.core.errors import ConfigError
from temper.core.protocols import SamplingParams
from temper.core.task import Task
from temper.core.trace import Trace
from temper.runs.answers import answered, fresh, held
from temper.runs.fitting import fit
from temper.runs.stages.sft import losses
from temper.training import config as training
from temper.training.stages import sft

if TYPE_CHECKING:
    from temper.runs.workshop import Workshop


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """tasks: training tasks, over all domains; answers: samples of each, of which the first `keep` good ones are used.

    threshold: the reward from which an answer is good. held: held-out tasks.
    """

    tasks: Some = 256
    answers: Some = 4
    keep: Some = 2
    threshold: float = 1.0
    held: Count = 64
    sampling: SamplingParams = SamplingParams()
    data: sft.Config = sft.Config()
    trainer: training.Config = training.Config()
    checkpoint_every: Some = 20


async def run(shop: Workshop, config: Config) -> None:
    from temper.training.trainer import Trainer

    kept = await _kept(shop, "train", fresh(shop, "rejection", config.tasks), config)
    apart = await _kept(shop, "held", held(shop, config.held), config)
    if not kept:
        raise ConfigError(
            f"rejection: none of the policy's answers to {config.tasks} tasks reaches {config.threshold:g}: lower the "
            "domains' level or the threshold, raise `answers`, or train with demonstrations first"
        )
    learner = Trainer(shop.policy, config.trainer)
    learner.version = shop.version
    measure = ("loss", "lower", partial(losses, learner, apart))
    update = partial(shop.computed, sft.step, learner)
    steps = sft.plan(kept, config.data, shop.recipe.seed)
    await fit(shop, "rejection", learner, steps, update, config.checkpoint_every, measure)
    await shop.publish(learner.version)


async def _kept(shop: Workshop, split: str, tasks: Sequence[Task], config: Config) -> list[Trace]:
    """The first good answers to each task."""
    groups = await answered(shop, f"rejection-{split}", tasks, config.answers, config.sampling)
    kept: list[Trace] = []
    for group in groups:
        good = [s for s in group.samples if not s.verdict.masked and s.verdict.reward >= config.threshold]
        kept += [s.trace for s in good[: config.keep]]
    shop.event("kept", "rejection", f"{len(kept)} of {len(groups) * config.answers} answers ({split})")
    return kept
