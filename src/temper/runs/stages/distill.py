"""On-policy distillation: the policy answers, a teacher model says what it would have written at each token.

The teacher is a second engine over another base with the same tokens. Rounds are synchronous: sample, score, update,
publish. The held-out measure is the divergence on answers to held-out tasks that the policy gave before the stage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from temper.core import registry
from temper.core.errors import ConfigError
from temper.core.protocols import Engine, SamplingParams
from temper.core.trace import Group
from temper.models.load import load
from temper.runs.answers import answered, fresh, held
from temper.runs.fitting import measure
from temper.runs.workshop import Workshop
from temper.training import trainer
from temper.training.packing import pack
from temper.training.stages import distill, path
from temper.training.stages.distill import Taught
from temper.training.stages.pairs import trained


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """teacher: a model as `model.base` names it. top_k: how many of its tokens count, 0 for all (its distribution).

    batch: tasks a step; answers: samples of each. held: held-out tasks.
    """

    teacher: str
    engine: dict[str, Any] = field(default_factory=lambda: {"kind": "torch"})
    top_k: int = 64
    steps: int = 50
    batch: int = 16
    answers: int = 1
    held: int = 32
    sampling: SamplingParams = SamplingParams()
    trainer: trainer.Config = trainer.Config()
    checkpoint_every: int = 10


async def run(shop: Workshop, config: Config) -> None:
    heat = config.sampling.temperature or 1.0
    learner = trainer.Trainer(shop.policy, replace(config.trainer, temperature=1.0))
    start = learner.version = shop.version
    tasks = fresh(shop, "distill", config.steps * config.batch)
    module, settings = registry.configure("engines", config.engine)
    base = await shop.computed(load, config.teacher, shop.recipe.model.dtype)
    if base.tokenizer.get_vocab() != shop.base.tokenizer.get_vocab():
        raise ConfigError(f"the teacher {config.teacher} has other tokens than {shop.recipe.model.base}")
    teacher = module.create(settings, base=base, adapter=None, full=False, executor=shop.compute)
    top_k = config.top_k or base.config.vocab_size
    ask = partial(answered, shop, each=config.answers, params=replace(config.sampling, temperature=heat))
    try:
        apart = await taught(teacher, await ask("distill-held", held(shop, config.held)), top_k)
        if saved := shop.latest("distill"):
            await shop.computed(learner.load, saved / "trainer")
            await shop.publish(learner.version)
        take = partial(_divergence, learner, apart)
        await measure(shop, "distill", "before", "KL to the teacher", "lower", take)
        rounds = [tasks[at : at + config.batch] for at in range(0, len(tasks), config.batch)][: config.steps]
        for number in range(learner.version - start, len(rounds)):
            items = await taught(teacher, await ask(f"distill-train-{number}", rounds[number]), top_k)
            values = await shop.computed(distill.step, learner, items)
            await shop.publish(learner.version)
            shop.metrics("distill", learner.version, values)
            shop.progress(number + 1, len(rounds))
            if (number + 1) % config.checkpoint_every == 0 or number + 1 == len(rounds):
                with shop.run.checkpoint(f"distill-{learner.version:06d}") as folder:
                    await shop.computed(learner.save, folder / "trainer")
        await measure(shop, "distill", "after", "KL to the teacher", "lower", take)
    finally:
        await teacher.close()


async def taught(teacher: Engine, groups: Sequence[Group], top_k: int) -> list[Taught]:
    """What the teacher says of each answer that was graded."""
    samples = [s for g in groups for s in g.samples if not s.verdict.masked]
    paths = [path(s.trace, s.leaf) for s in samples]
    asked = [(s, p.ids) for s, p in zip(samples, paths, strict=True) if trained(p).any()]
    scores = await asyncio.gather(*(teacher.score(ids, top_k) for _, ids in asked))
    return [Taught(s, *best) for (s, _), (_, best) in zip(asked, scores, strict=True)]


def _divergence(learner: trainer.Trainer, items: Sequence[Taught]) -> list[float]:
    cap = learner.config.micro_tokens
    return [learner.evaluate(pack(distill.rows([item]), cap))["kl_teacher"] for item in items]
