"""Attempts as stages ask for them: played here or by workers, stored once either way."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from temper.core.protocols import SamplingParams
from temper.rollouts.resumed import Said
from temper.runs.farm import Config
from temper.runs.recipe import DomainEntry, Model, Recipe
from temper.runs.workshop import opened
from temper.scheduling.placement import worker_of
from temper.store import codec
from temper.store.run import RunDirectory

sys.path.insert(0, str(Path(__file__).parent))  # workers get this process's path
from worlds.errands import task as errand


def recipe() -> Recipe:
    return Recipe(
        name="errands",
        model=Model(base="tiny:"),
        verifier_workers=1,
        domains=(DomainEntry(kind="worlds.errands"),),
        stages=(),
        workers=Config(count=1),
    )


def test_a_worker_that_dies_is_a_fault_on_record_and_the_next_attempt_runs_on_another(tmp_path):
    async def play(run):
        found = []
        async with opened(recipe(), run, []) as shop:
            for name, does in (("t0", "answer"), ("t1", "kill"), ("t2", "answer")):
                task = errand(name, does)
                trace, verdict = await shop.attempt(task, shop.gold(task), SamplingParams(), name)
                found.append((name, trace.stop, verdict.status, verdict.reward, worker_of(trace)))
        return found

    with RunDirectory.create(tmp_path / "run", recipe()) as run:
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


def test_a_conversation_that_is_lost_with_its_worker_goes_on_with_the_tokens_that_it_had(tmp_path):
    params = SamplingParams(stop=tuple("abcdefghijklmnopqrstuvwxyz0123456789"))  # a random model ends no turn by itself
    task = errand(0, "talk", begun=f"{tmp_path}/begun", until=f"{tmp_path}/go")

    async def play(run):
        async with opened(recipe(), run, []) as shop:
            lost = asyncio.create_task(shop.attempt(task, shop.model, shop.seeded(params, "t0"), "t0", said=()))
            while not (tmp_path / "begun").exists():
                await asyncio.sleep(0.01)
            _, failed = await shop.attempt(errand(1, "fail"), shop.model, params, "t1")
            os.kill(int(failed.evidence[0].text.split()[-1]), signal.SIGKILL)
            before, _ = await lost
            (tmp_path / "go").touch()
            said = shop.interrupted["t0"]
            after, verdict = await shop.attempt(task, shop.model, shop.seeded(params, "t1"), "t0-1", said=said)
            return before, said, after, verdict

    with RunDirectory.create(tmp_path / "run", recipe()) as run:
        before, (said,), after, verdict = asyncio.run(play(run))
    assert (before.fault.what, before.cost.tokens_out, verdict.status) == ("worker-lost", 0, "graded")
    assert [s.author for s in after.segments] == ["environment", "policy", "environment", "policy"]
    assert codec.encode(after.segments[:2]) == codec.encode(said.segments)
    run = RunDirectory.view(tmp_path / "run")
    assert [(s.trace, s.turn) for s in run.log("turns", Said)] == [("t0", 0)], "it is not recorded again"
