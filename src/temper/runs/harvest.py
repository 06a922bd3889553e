"""A model's answers to a domain's held-out tasks, kept as known ones: what half of an error card should rest on.

The untrained base answers, with worked examples in the prompt, so that nobody who wrote the verifier or its cases had a
hand in it. Each level is asked twice: greedily, and other tasks at temperature 1. The domain's second rule says which
answers are right (`verifiers.audit.samples`).
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from temper.core import registry
from temper.core.protocols import SamplingParams, Sink
from temper.runs import driver
from temper.runs.recipe import DomainEntry, Evaluation, Model, Recipe
from temper.store.run import RunDirectory
from temper.verifiers.audit import replay

_TEMPERATURES = (0.0, 1.0)


async def harvest(kind: str, answers: int, base: str, most: int, sinks: list[Sink]) -> int:
    """How many answers are kept beside the domain's card after about `answers` new ones were asked for."""
    module, config = registry.configure("domains", kind)
    levels = module.create(config).levels
    tasks, kept = max(1, answers // (len(levels) * len(_TEMPERATURES))), 0
    with tempfile.TemporaryDirectory() as folder:
        for level, (seed, temperature) in itertools.product(levels, enumerate(_TEMPERATURES)):
            evaluation = Evaluation(tasks=tasks, sampling=SamplingParams(temperature=temperature, max_tokens=512))
            recipe = Recipe(
                name=f"harvest-{kind}",
                seed=seed,
                model=Model(base=base) if base else Model(),
                domains=(DomainEntry(kind=kind, level=level),),
                stages=(),
                evaluation=evaluation,
            )
            path = Path(folder) / f"{level}-{seed}"
            await driver.start(recipe, path, sinks)
            (kept,) = (await replay.harvest(RunDirectory.view(path), most)).values()
    return kept
