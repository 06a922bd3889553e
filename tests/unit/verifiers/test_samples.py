"""Model answers as known ones: second rules tell right from wrong by themselves, and samples read back."""

from __future__ import annotations

import asyncio
from itertools import islice

import pytest
from msgspec.structs import replace

from temper.core import registry
from temper.core.task import Case
from temper.verifiers.audit import samples
from temper.verifiers.audit.bench import opened


@pytest.mark.parametrize("kind", ["arithmetic", "code_repair", "sql", "tools"])
def test_a_second_rule_knows_gold_answers_from_those_of_other_tasks(kind):
    domain = registry.find("domains", kind).create()

    async def main():
        async with opened(domain) as bench:
            tasks = list(islice(domain.tasks("train", 2), 4))
            answers = []
            for task in tasks:
                trace, artifacts = await bench.play(task, domain.gold(task))
                answers.append(Case(right=True, why="gold", answer=trace.answer, artifacts=artifacts))
            own = [await samples.opinion(bench, task, case) for task, case in zip(tasks, answers, strict=True)]
            turned = [*answers[1:], answers[0]]
            others = [await samples.opinion(bench, task, case) for task, case in zip(tasks, turned, strict=True)]
            nothing = [await samples.opinion(bench, task, Case(right=False, why="nothing")) for task in tasks]
            return own, others, nothing

    own, others, nothing = asyncio.run(main())
    assert all(own)
    assert not any(others)
    assert not any(nothing)


def test_a_program_that_spoils_the_second_rules_process_is_not_right():
    domain = registry.find("domains", "code_repair").create()
    task = next(iter(domain.tasks("train", 1)))

    async def main():
        async with opened(domain) as bench:
            case = Case(right=True, why="exit", artifacts={"m.py": b"import os\nos._exit(0)\n"})
            return await samples.opinion(bench, task, case)

    assert asyncio.run(main()) is False


def test_samples_read_back_with_their_tasks_and_without_those_that_are_gone(copied):
    module = registry.find("domains", copied("temper.domains.arithmetic"))
    domain = module.create()
    tasks = [next(iter(domain.tasks("heldout", 1, seed=3))), next(islice(domain.tasks("train", 2, seed=3), 7, None))]
    case = Case(right=False, why="rl-0-0-0", answer="12", artifacts={"a": b"\xff"}, source="sample")
    kept = [samples.Sample(seed=3, level=task.level, task=task.id, case=case) for task in tasks]
    kept.append(replace(kept[0], task="gone"))
    samples.save(module, kept)
    assert samples.kept(module) == kept
    assert samples.load(module, domain) == [(task, case) for task in tasks]


def test_a_domain_without_samples_has_none(copied):
    module = registry.find("domains", copied("temper.domains.arithmetic"))
    assert samples.load(module, module.create()) == []
