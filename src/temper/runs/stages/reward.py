"""A reward model from the policy's own answers: sampled, graded, paired, and learnt with a head beside an adapter.

What is trained is a copy of the policy; the policy itself does not change. The result is a folder that the verifier
`reward_model` takes, in the run's checkpoint `reward-N`, and `reward.json` says how far its judgement can be believed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from temper.core.config import Count, Some
from temper.core.errors import ConfigError
from temper.core.protocols import SamplingParams
from temper.runs.answers import answered, fresh, held
from temper.runs.fitting import fit
from temper.training import config as training
from temper.training.stages import reward, sft
from temper.training.stages.pairs import Pair, pairs

if TYPE_CHECKING:
    from temper.runs.workshop import Workshop

beside = True  # the policy is not what it trains


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """tasks: training tasks, over all domains by their shares; held: held-out ones; answers: samples of each.

    gold: the domain's own answer is among them, so that tasks which the policy never solves give a pair too.
    """

    tasks: Some = 128
    held: Count = 64
    answers: Some = 4
    gold: bool = True
    sampling: SamplingParams = SamplingParams()
    data: sft.Config = sft.Config()
    trainer: training.Config = training.Config(scalar=True)
    checkpoint_every: Some = 20


async def run(shop: Workshop, config: Config) -> None:
    from temper.models.scalar import MODEL, Description
    from temper.training.trainer import Trainer

    found, kept = await compared(shop, "reward", config)
    policy = await shop.computed(shop.learning)
    await shop.computed(lambda: policy.load_trainable(shop.policy.trainable()))
    learner = Trainer(policy, replace(config.trainer, scalar=True))
    model = shop.recipe.model
    description = Description(base=model.base, dtype=model.dtype, chat=model.chat)

    def margins() -> list[float]:
        return [float(gap > 0) for gap in reward.margins(learner, kept)]

    update = partial(shop.computed, reward.step, learner)
    steps = sft.plan(found, config.data, shop.recipe.seed)
    measure = ("pair accuracy", "higher", margins)
    files = {MODEL: msgspec.json.encode(description)}  # by which a checkpoint is a reward model
    await fit(shop, "reward", learner, steps, update, config.checkpoint_every, measure, files)
    report = reward.calibration(await shop.computed(reward.margins, learner, kept))
    shop.run.write("reward.json", msgspec.json.format(msgspec.json.encode(report), indent=2))
    shop.event("calibration", "reward", f"error {report.error:.3f}, log loss {report.log_loss:.3f}")


async def compared(shop: Workshop, stage: str, config: Config) -> tuple[list[Pair], list[Pair]]:
    """Pairs to learn from and held-out ones. Raises ConfigError where either are none."""
    tasks = {"train": fresh(shop, stage, config.tasks), "held": held(shop, config.held)}
    found = {}
    for split, asked in tasks.items():
        groups = await answered(shop, f"{stage}-{split}", asked, config.answers, config.sampling, config.gold)
        found[split] = pairs(groups)
        shop.event("pairs", stage, f"{len(found[split])} of {len(asked)} {split} tasks have answers that differ")
        if not found[split]:
            raise ConfigError(
                f"{stage}: of {len(asked)} tasks ({split}) none has two answers with different rewards: raise "
                "`answers` or `tasks`, set gold = true, or train with demonstrations first"
            )
    return found["train"], found["held"]
