"""Environment workers for real: sandboxes in other processes, workers that are killed, tasks that kill them."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import time
from functools import cache
from pathlib import Path

import msgspec
import pytest

from temper.core.blame import FaultError
from temper.core.errors import BackendError, ConfigError, MissingError, RefusedError
from temper.core.protocols import SamplingParams
from temper.core.trace import Trace, Verdict
from temper.domains import terminal
from temper.engines.scripted import ScriptedChat
from temper.models.chat import chatml
from temper.models.load import load
from temper.runs import farm
from temper.runs.arena import Arena, Plan
from temper.runs.farm import Config, Farm
from temper.runs.worker import Order, Setup
from temper.scheduling.placement import worker_of
from temper.store import codec

sys.path.insert(0, str(Path(__file__).parent))  # workers get this process's path
from worlds.errands import task as errand

PLAN = Plan(domains={"terminal": {}, "worlds.errands": {}}, sandbox={"kind": "local"}, verifier_workers=1)


@cache
def tokenizer():
    return load("tiny:").tokenizer


def setup(**more):
    return Setup(plan=PLAN, tokenizer=tokenizer().to_str(), **{"chat": {"kind": "chatml"}, **more})


def on_farm(play, model=None, **config):
    """What `play(attempt)` gives on a farm of workers, and (what, whom) of its events."""
    told = []

    async def run():
        def event(what, whom="", why="", **data):
            told.append((what, whom))

        async with Farm(Config(**config), setup(model=model), event, time.monotonic) as made:

            async def attempt(task, name, model="gold"):
                order = Order(trace=name, task=task, model=model, params=SamplingParams(seed=7))
                trace, verdict = await made.attempt(order)
                return codec.decode(trace, Trace), codec.decode(verdict, Verdict)

            return await play(attempt)

    return asyncio.run(run()), told


def nap(n, folder):
    """Until the folder's file "go" is there."""
    return errand(n, "nap", begun=f"{folder}/begun-{n}", until=f"{folder}/go", closed=f"{folder}/closed-{n}")


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_a_worker_plays_and_grades_what_the_driver_would_and_says_where(executor):
    tasks = list(itertools.islice(terminal.create().tasks("train", 1), 6))

    async def far(attempt):
        return await asyncio.gather(*(attempt(task, f"t{n}") for n, task in enumerate(tasks)))

    async def here():
        chat = chatml.create(chatml.Config(), tokenizer())
        async with Arena(PLAN) as arena:
            params = SamplingParams(seed=7)
            models = [ScriptedChat(arena.domains["terminal"].gold(task), chat) for task in tasks]
            return [
                await arena.attempt(task, model, params, f"t{n}", time.monotonic)
                for n, (task, model) in enumerate(zip(tasks, models, strict=True))
            ]

    played, _ = on_farm(far, executor=executor)
    for (trace, verdict), (same, graded) in zip(played, asyncio.run(here()), strict=True):
        assert verdict.score == 1
        assert msgspec.structs.replace(verdict, evidence=()) == msgspec.structs.replace(graded, evidence=())
        assert [s.ids.tolist() for s in trace.segments] == [s.ids.tolist() for s in same.segments]
        assert worker_of(trace) in ("worker-1", "worker-2")
        assert worker_of(same) == ""


def test_attempts_of_a_killed_worker_are_faults_and_end_well_on_others_each_once(tmp_path):
    async def play(attempt):
        ended, faults = [], []

        async def one(n):
            while n not in ended:
                try:
                    await attempt(nap(n, tmp_path), f"t{n}")
                    ended.append(n)
                except FaultError as error:
                    faults.append((n, error.fault.what))

        _, failed = await attempt(errand(99, "fail"), "t99")
        running = asyncio.gather(*map(one, range(12)))
        while len(list(tmp_path.glob("begun-*"))) < 12:
            await asyncio.sleep(0.01)
        os.kill(int(failed.evidence[0].text.split()[-1]), signal.SIGKILL)
        (tmp_path / "go").touch()
        await running
        return ended, faults

    (ended, faults), told = on_farm(play, executor="processes", at_once=6)
    assert sorted(ended) == list(range(12))
    assert len({n for n, _ in faults}) == len(faults) == 6
    assert {what for _, what in faults} == {"worker-lost"}
    assert [what for what, _ in told].count("worker lost") == 1


def test_a_task_that_kills_its_workers_is_diagnosed_and_its_neighbours_are_not():
    async def play(attempt):
        async def one(n):
            deaths = 0
            while True:
                try:
                    _, verdict = await attempt(errand(n, "kill" if n == 3 else "answer"), f"t{n}")
                    return verdict.why, deaths
                except FaultError as error:
                    deaths += 1
                    if error.fault.what != "worker-lost":
                        return error.fault.what, deaths

        return await asyncio.gather(*(one(n) for n in range(8)))

    found, told = on_farm(play, executor="processes", count=2)
    assert found.pop(3) == ("environment-broken", 3)
    assert {why for why, _ in found} == {"graded"}
    assert [whom for what, whom in told if what == "diagnosed"] == ["t3"]


def test_a_cancelled_attempt_is_cancelled_in_its_worker(tmp_path):
    async def play(attempt):
        running = asyncio.ensure_future(attempt(nap(0, tmp_path), "t0"))
        while not (tmp_path / "begun-0").exists():
            await asyncio.sleep(0.01)
        running.cancel()
        while not (tmp_path / "closed-0").exists():
            await asyncio.sleep(0.01)
        return await attempt(errand(1), "t1")

    (_, verdict), told = on_farm(play, executor="processes", count=1, at_once=1)
    assert verdict.score == 1
    assert [what for what, _ in told] == ["worker ready"], "the worker goes on"


def test_closing_ends_what_still_runs(tmp_path):
    order = Order(trace="t0", task=nap(0, tmp_path), model="gold", params=SamplingParams())

    async def run():
        async with Farm(Config(executor="inline"), setup(), lambda *_, **__: None, time.monotonic) as made:
            running = asyncio.ensure_future(made.attempt(order))
            while not (tmp_path / "begun-0").exists():
                await asyncio.sleep(0.01)
        assert (tmp_path / "closed-0").exists()
        with pytest.raises(FaultError, match="closed"):
            await running

    asyncio.run(run())


def test_what_a_domain_raises_is_told_and_a_fault_inside_names_its_worker():
    async def play(attempt):
        with pytest.raises(BackendError, match="there is no such errand"):
            await attempt(errand(0, "raise"), "t0")
        return await attempt(errand(1, "fail"), "t1")

    (trace, verdict), _ = on_farm(play, executor="inline", count=1)
    assert (verdict.status, verdict.why) == ("infra", "backend-lost")
    assert worker_of(trace) == "worker-1"


def test_a_given_model_answers_in_the_worker():
    ids = [*tokenizer().encode("done").ids, 2]
    model = {"kind": "scripted", "sequences": [ids]}

    async def play(attempt):
        return await attempt(errand(0), "t0", "given")

    (trace, verdict), _ = on_farm(play, executor="inline", model=model, count=1)
    assert verdict.score == 1
    assert trace.segments[-1].ids.tolist() == ids


def test_workers_that_cannot_be_made_end_the_start_with_the_reason():
    async def run():
        async with Farm(Config(count=1), setup(chat={"kind": "none"}), lambda *_, **__: None, time.monotonic):
            pass

    with pytest.raises(BackendError, match="is called 'none'"):
        asyncio.run(run())


def test_models_that_only_the_driver_can_hold_are_refused():
    farm.check(Config(model={"kind": "openai", "base_url": "http://localhost", "model": "m"}))
    with pytest.raises(RefusedError, match="lives in the driver"):
        farm.check(Config(model={"kind": "torch"}))
    with pytest.raises(MissingError, match="processes"):
        farm.check(Config(executor="proceses"))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"count": -3}, "got -3"),
        ({"count": 0}, "count"),
        ({"executor": "inline", "at_once": 0}, "at_once"),
        ({"resources": {"cpus": float("nan")}}, "cpus above 0, got nan"),
        ({"resources": {"cpus": 0.0}}, "cpus above 0"),
    ],
)
def test_a_farm_without_room_for_an_attempt_is_refused(wrong, named):
    with pytest.raises(ConfigError, match=named):
        Config(**wrong)


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_resources_that_the_executor_does_not_give_are_refused_before_it_starts(executor):
    with pytest.raises(RefusedError, match="gives cpus, and not gpus"):
        farm.check(Config(executor=executor, resources={"cpus": 1.0, "gpus": 1.0}))


def test_a_script_of_tokens_that_nobody_has_is_refused():
    model = {"kind": "scripted", "sequences": [[1, 10**9]]}
    with pytest.raises(BackendError, match="got 1000000000"):
        on_farm(None, executor="inline", model=model, count=1)
