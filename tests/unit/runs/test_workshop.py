"""Attempts as stages ask for them: played here or by workers, stored once either way."""

import asyncio
import sys
from pathlib import Path

from temper.core.protocols import SamplingParams
from temper.runs.farm import Config
from temper.runs.recipe import DomainEntry, Model, Recipe
from temper.runs.workshop import opened
from temper.scheduling.placement import worker_of
from temper.store.run import RunDirectory

sys.path.insert(0, str(Path(__file__).parent))  # workers get this process's path
from worlds.errands import task as errand


def test_a_worker_that_dies_is_a_fault_on_record_and_the_next_attempt_runs_on_another(tmp_path):
    recipe = Recipe(
        name="errands",
        model=Model(base="tiny:"),
        verifier_workers=1,
        domains=(DomainEntry(kind="worlds.errands"),),
        stages=(),
        workers=Config(count=1),
    )

    async def play(run):
        found = []
        async with opened(recipe, run, []) as shop:
            for name, does in (("t0", "answer"), ("t1", "kill"), ("t2", "answer")):
                task = errand(name, does)
                trace, verdict = await shop.attempt(task, shop.gold(task), SamplingParams(), name)
                found.append((name, trace.stop, verdict.status, verdict.reward, worker_of(trace)))
        return found

    with RunDirectory.create(tmp_path / "run", recipe) as run:
        assert asyncio.run(play(run)) == [
            ("t0", "answer", "graded", 1.0, "worker-1"),
            ("t1", "fault", "infra", 0.0, "worker-1"),
            ("t2", "answer", "graded", 1.0, "worker-2"),
        ]
    run = RunDirectory.view(tmp_path / "run")
    assert [(t.id, worker_of(t)) for t in run.traces] == [("t0", "worker-1"), ("t1", "worker-1"), ("t2", "worker-2")]
    assert [v.trace for v in run.verdicts] == ["t0", "t1", "t2"]
    assert [e.what for e in run.events if e.whom.startswith("worker-")] == [
        "worker ready",
        "worker lost",
        "worker ready",
    ]
