"""Preference alignment on the policy's own graded answers: DPO, or what `trainer.losses.preference` names.

The reference is the policy at the stage's beginning; its log-probs are measured once and stored with the run.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from temper.runs.fitting import fit
from temper.runs.stages import reward
from temper.training import config as training
from temper.training.stages import preference, sft
from temper.training.stages.pairs import Pair

if TYPE_CHECKING:
    from temper.runs.workshop import Workshop
    from temper.training.trainer import Trainer


class Config(reward.Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As for a reward model; `trainer.losses.preference = {kind = "ipo"}` chooses another loss than DPO."""

    trainer: training.Config = training.Config(lr=2e-5)


class Reference(Struct, frozen=True, kw_only=True, eq=False):
    """Log-probs (n,) of an answer under the reference policy."""

    answer: str
    logprobs: np.ndarray


async def run(shop: Workshop, config: Config) -> None:
    from temper.training.scoring import snapshot
    from temper.training.trainer import Trainer

    found, kept = await reward.compared(shop, "preference", config)
    learner = Trainer(shop.policy, config.trainer)
    learner.version = shop.version
    initial = await shop.computed(snapshot, shop.policy)
    references = await _references(shop, learner, [*found, *kept])

    def accuracy() -> list[float]:
        return [_likelier(learner, pair, references) for pair in kept]

    step = partial(preference.step, learner, references=references, initial=initial)
    update = partial(shop.computed, step)
    steps = sft.plan(found, config.data, shop.recipe.seed)
    held = ("reward margin", "higher", accuracy)
    await fit(shop, "preference", learner, steps, update, config.checkpoint_every, held)
    await shop.publish(learner.version)


async def _references(shop: Workshop, learner: Trainer, items: list[Pair]) -> dict[str, np.ndarray]:
    log = shop.run.log("references", Reference)
    stored = {r.answer: r.logprobs for r in log}
    missing = [pair for pair in items if any(preference.key(s) not in stored for s, _ in pair.sides)]
    if missing:
        for answer, found in (await shop.computed(preference.reference, learner, missing)).items():
            log.append(Reference(answer=answer, logprobs=found))
            stored[answer] = found
    return stored


def _likelier(learner: Trainer, pair: Pair, references: dict[str, np.ndarray]) -> float:
    """The loss's own margin of a held-out pair."""
    anchor = 0.0 if "anchor" in learner.losses["preference"][0].streams else None
    rows = preference.rows([pair], references, anchor)
    return learner.evaluate(learner.pack(rows, together=True))["reward_margin"]
