"""A reward model from the policy's own answers: sampled, graded, paired, and learnt with a head beside an adapter.

What is trained is a copy of the policy; the policy itself does not change. The result is a folder that the verifier
`reward_model` takes, in the run's checkpoint `reward-N`, and `reward.json` says how far its judgement can be believed.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from temper.core.errors import ConfigError
from temper.core.protocols import SamplingParams
from temper.models.policy import Policy
from temper.models.scalar import MODEL, Description
from temper.runs.answers import answered, fresh, held
from temper.runs.fitting import fit
from temper.runs.workshop import Workshop
from temper.training import trainer
from temper.training.stages import reward, sft
from temper.training.stages.pairs import Pair, pairs

beside = True  # the policy is not what it trains


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """tasks: training tasks, over all domains by their shares; held: held-out ones; answers: samples of each.

    gold: the domain's own answer is among them, so that tasks which the policy never solves give a pair too.
    """

    tasks: int = 128
    held: int = 64
    answers: int = 4
    gold: bool = True
    sampling: SamplingParams = SamplingParams()
    data: sft.Config = sft.Config()
    trainer: trainer.Config = trainer.Config(scalar=True)
    checkpoint_every: int = 20


async def run(shop: Workshop, config: Config) -> None:
    found, kept = await compared(shop, "reward", config)
    policy = await shop.computed(shop.learning)
    await shop.computed(lambda: policy.load_trainable(shop.policy.trainable()))
    learner = _Learner(policy, replace(config.trainer, scalar=True), shop)

    def margins() -> list[float]:
        return [float(gap > 0) for gap in reward.margins(learner, kept)]

    update = partial(reward.step, learner, config=config.data)
    steps = sft.plan(found, config.data, shop.recipe.seed)
    await fit(shop, "reward", learner, steps, update, config.checkpoint_every, ("pair accuracy", "higher", margins))
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


class _Learner(trainer.Trainer):
    """A trainer whose checkpoints are reward models."""

    def __init__(self, policy: Policy, config: trainer.Config, shop: Workshop) -> None:
        super().__init__(policy, config)
        model = shop.recipe.model
        self._description = Description(base=model.base, dtype=model.dtype, chat=model.chat)

    def save(self, folder: str | Path) -> None:
        super().save(folder)
        (Path(folder) / MODEL).write_bytes(msgspec.json.encode(self._description))
