"""A model's answers to a domain's held-out tasks, kept as known ones: what half of an error card should rest on.

The untrained base answers, with worked examples in the prompt, or a model that is named, without; so nobody who wrote
the verifier or its cases had a hand in it. Each level is asked twice: greedily, and other tasks at temperature 1, four
times each, since it is the prompts that take long. The domain's second rule says which answers are right
(`verifiers.audit.samples`).
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

_ASKED = ((0.0, 1), (1.0, 4))  # temperature, and tries of a task


async def harvest(kind: str, answers: int, base: str, most: int, sinks: list[Sink]) -> int:
    """How many answers are kept beside the domain's card after about `answers` new ones were asked for."""
    module, config = registry.configure("domains", kind)
    levels = module.create(config).levels
    tasks, kept = max(1, answers // (len(levels) * sum(tries for _, tries in _ASKED))), 0
    with tempfile.TemporaryDirectory() as folder:
        for level, (seed, (temperature, tries)) in itertools.product(levels, enumerate(_ASKED)):
            sampling = SamplingParams(temperature=temperature)
            recipe = Recipe(
                name=f"harvest-{kind}",
                seed=seed,
                model=Model(base=base) if base else Model(),
                domains=(DomainEntry(kind=kind, level=level),),
                stages=(),
                evaluation=Evaluation(tasks=tasks, tries=tries, sampling=sampling, examples=0 if base else 2),
            )
            path = Path(folder) / f"{level}-{seed}"
            await driver.start(recipe, path, sinks)
            (kept,) = (await replay.harvest(RunDirectory.view(path), most)).values()
    return kept
