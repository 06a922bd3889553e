"""Known answers that domains write beside themselves get the grade that they say, through the real verifier."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from temper.core import registry
from temper.core.task import Message
from temper.core.trace import Segment, Trace
from temper.verifiers.grading import grade
from temper.verifiers.pool import Pool

NAMES = ["code_repair", "refactoring", "sql", "table_questions", "terminal", "tools"]
FEW, MANY = 1, 90  # tasks of each level


def misjudged(name: str, each: int) -> tuple[int, list[tuple[str, str, str]]]:
    """How many cases there were, and those whose verdict is another."""
    module, config = registry.configure("domains", name)
    domain = module.create(config)
    tasks = [task for level in domain.levels for task in itertools.islice(domain.tasks("train", level, 3), each)]

    async def every():
        module, config = registry.configure("sandboxes", "local")
        backend = module.create(config)
        room = asyncio.Semaphore(8)

        async def one(task, case):
            kind, settings = domain.verifier(task)
            module, config = registry.configure("verifiers", {"kind": kind, **settings})
            trace = Trace(
                id="t", task=task.id, domain=name, seed=0,
                segments=(Segment.given((*task.messages, Message("assistant", case.answer)), []),),
            )  # fmt: skip
            async with room:
                return await grade(task, trace, case.artifacts, module.create(config, pool, backend))

        async with Pool(workers=2) as pool:
            cases = [(task, case) for task in tasks for case in domain.cases(task)]
            verdicts = await asyncio.gather(*(one(*pair) for pair in cases))
        await backend.close()
        return list(zip(cases, verdicts, strict=True))

    judged = asyncio.run(every())
    assert {case.right for (_, case), _ in judged} == {True, False}
    return len(judged), [
        (task.id, case.why, str(verdict.evidence)[:300])
        for (task, case), verdict in judged
        if (verdict.status, verdict.score) != ("graded", float(case.right))
    ]


@pytest.mark.parametrize("name", NAMES)
def test_known_answers_are_judged_as_they_are(name):
    assert misjudged(name, FEW)[1] == []


@pytest.mark.nightly
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", NAMES)
def test_known_answers_of_many_tasks_are_judged_as_they_are(name):
    n, wrong = misjudged(name, MANY)
    assert len(wrong) / n < 0.002, wrong
