"""Model answers as known ones: second rules tell right from wrong by themselves, and samples read back."""

from __future__ import annotations

import asyncio
import sys
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace

from temper.core import registry
from temper.core.task import Case
from temper.runs.harvest import harvest
from temper.verifiers.audit import samples
from temper.verifiers.audit.bench import opened

sys.path.insert(0, str(Path(__file__).parent))  # the plugins in `audited`


SLOW = ("solid_parts", "code_repair", "refactoring")  # seconds a task


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.nightly) if k in SLOW else k for k in registry.names("domains")]
)
def test_a_second_rule_knows_gold_answers_and_never_contradicts_the_author(kind):
    domain = registry.find("domains", kind).create()
    if not hasattr(domain, "second_opinion"):
        pytest.skip(f"{kind} has no second rule")
    for package in getattr(domain, "packages", ()):
        pytest.importorskip(package, reason=f"{kind} needs {package}, which an extra brings")

    async def main():
        golds = []
        async with opened(domain) as bench:
            for level in domain.levels:
                for task in islice(domain.tasks("train", level), 2):
                    trace, artifacts = await bench.play(task, domain.gold(task))
                    gold = Case(right=True, why="gold", answer=trace.answer, artifacts=artifacts)
                    golds.append(await samples.opinion(bench, task, gold))
                    assert await samples.opinion(bench, task, Case(right=False, why="nothing")) is False
                    for case in domain.cases(task):
                        assert await samples.opinion(bench, task, case) in (None, case.right), case
        assert set(golds) in ({True}, {True, None})

    asyncio.run(main())


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


def test_a_model_is_asked_and_what_it_says_is_kept(copied, monkeypatch):
    kind = copied("audited.words")
    module = registry.find("domains", kind)
    monkeypatch.setattr(module.Words, "name", kind)
    kept = asyncio.run(harvest(kind, 8, "tiny:", 100, []))
    known = [case for _, case in samples.load(module, module.create())]
    assert 0 < kept == len(known) <= 8
    assert {(case.source, case.right) for case in known} == {("sample", False)}, "a random model knows no words"
