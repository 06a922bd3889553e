"""On-policy distillation: the policy answers, a teacher model says what it would have written at each token.

The teacher is a second engine over another base with the same tokens. Rounds are synchronous: sample, score, update,
publish. The held-out measure is the divergence on answers to held-out tasks that the policy gave before the stage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from temper.core import registry
from temper.core.config import Count, Some
from temper.core.errors import ConfigError
from temper.core.protocols import Engine, SamplingParams
from temper.core.trace import Group
from temper.runs.answers import answered, fresh, held
from temper.runs.fitting import fit
from temper.training import config as training
from temper.training.stages import distill, path
from temper.training.stages.distill import Taught

if TYPE_CHECKING:
    from temper.runs.workshop import Workshop
    from temper.training.trainer import Trainer


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """teacher: a model as `model.base` names it. top_k: how many of its tokens count, 0 for all (its distribution).

    batch: tasks a step; answers: samples of each. held: held-out tasks.
    """

    teacher: str
    engine: dict[str, Any] = field(default_factory=lambda: {"kind": "torch"})
    top_k: Count = 64
    steps: Some = 50
    batch: Some = 16
    answers: Some = 1
    held: Count = 32
    sampling: SamplingParams = SamplingParams()
    trainer: training.Config = training.Config()
    checkpoint_every: Some = 10


async def run(shop: Workshop, config: Config) -> None:
    from temper.models.load import load
    from temper.training.trainer import Trainer

    heat = config.sampling.temperature or 1.0
    learner = Trainer(shop.policy, replace(config.trainer, temperature=1.0))
    learner.version = shop.version
    tasks = fresh(shop, "distill", config.steps * config.batch)
    module, settings = registry.configure("engines", config.engine)
    base = await shop.computed(load, config.teacher, shop.recipe.model.dtype)
    if base.tokenizer.get_vocab() != shop.base.tokenizer.get_vocab():
        raise ConfigError(f"the teacher {config.teacher} has other tokens than {shop.recipe.model.base}")
    teacher = module.create(settings, base=base, adapter=None, full=False, executor=shop.compute)
    top_k = config.top_k or base.config.vocab_size
    ask = partial(answered, shop, each=config.answers, params=replace(config.sampling, temperature=heat))
    rounds = [tasks[at : at + config.batch] for at in range(0, len(tasks), config.batch)][: config.steps]

    async def update(number: int) -> dict[str, float]:
        await shop.publish(learner.version)
        items = await taught(teacher, await ask(f"distill-train-{number}", rounds[number]), top_k)
        return await shop.computed(distill.step, learner, items)

    try:
        apart = await taught(teacher, await ask("distill-held", held(shop, config.held)), top_k)
        measure = ("KL to the teacher", "lower", partial(_divergence, learner, apart))
        await fit(shop, "distill", learner, range(len(rounds)), update, config.checkpoint_every, measure)
        await shop.publish(learner.version)
    finally:
        await teacher.close()


async def taught(teacher: Engine, groups: Sequence[Group], top_k: int) -> list[Taught]:
    """What the teacher says of each answer that was graded."""
    samples = [s for g in groups for s in g.samples if not s.verdict.masked]
    paths = [path(s.trace, s.leaf) for s in samples]
    asked = [(s, p.ids) for s, p in zip(samples, paths, strict=True) if p.sampled.any()]
    scores = await asyncio.gather(*(teacher.score(ids, top_k) for _, ids in asked))
    return [Taught(s, *best) for (s, _), (_, best) in zip(asked, scores, strict=True)]


def _divergence(learner: Trainer, items: Sequence[Taught]) -> list[float]:
    return [learner.evaluate(learner.pack(distill.rows([item])))["kl_teacher"] for item in items]
