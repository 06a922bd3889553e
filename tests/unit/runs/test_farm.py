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
import numpy as np
import pytest

from temper.core.blame import FaultError
from temper.core.errors import BackendError, ConfigError, CorruptError, MissingError, RefusedError
from temper.core.protocols import Chunk, SamplingParams
from temper.core.task import Limits
from temper.core.trace import Trace, Verdict
from temper.domains import terminal
from temper.engines.chat import EngineChat
from temper.engines.scripted import ScriptedChat, ScriptedEngine
from temper.models.chat import chatml
from temper.models.load import load
from temper.runs import farm
from temper.runs.arena import Arena, Order, Plan
from temper.runs.farm import Config, Farm
from temper.runs.worker import Setup
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


def on_farm(play, model=None, engine=None, params=SamplingParams(seed=7), **config):  # noqa: B008
    """What `play(attempt)` gives on a farm of workers, and (what, whom) of its events."""
    told = []

    async def run():
        def event(what, whom="", why="", **data):
            told.append((what, whom))

        async with Farm(Config(**config), setup(model=model), event, time.monotonic, engine) as made:

            async def attempt(task, name, model="gold"):
                trace, verdicts = await made.attempt(order(task, name, model=model, params=params))
                return codec.decode(trace, Trace), *codec.decode(verdicts, tuple[Verdict, ...])

            return await play(attempt)

    return asyncio.run(run()), told


def order(task, name, **more):
    return Order(**{"trace": name, "task": task, "params": SamplingParams(seed=7), **more})


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
            models = [ScriptedChat(arena.domains["terminal"].gold(task), chat) for task in tasks]
            return [
                await arena.play(order(task, f"t{n}"), model, time.monotonic)
                for n, (task, model) in enumerate(zip(tasks, models, strict=True))
            ]

    played, _ = on_farm(far, executor=executor)
    for (trace, verdict), (same, (graded,)) in zip(played, asyncio.run(here()), strict=True):
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
    async def run():
        async with Farm(Config(executor="inline"), setup(), lambda *_, **__: None, time.monotonic) as made:
            running = asyncio.ensure_future(made.attempt(order(nap(0, tmp_path), "t0", model="gold")))
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


class Drifting(ScriptedEngine):
    """Says "done" token by token, each of another version, with log-probs that no text would give back."""

    async def generate(self, ids, params, request=""):
        said = [*tokenizer().encode("done").ids, 2]
        for n, token in enumerate(said):
            facts = np.array([-1 / (n + 3)], np.float32), np.array([n], np.int32)
            yield Chunk(np.array([token], np.int32), *facts, "stop" if n == len(said) - 1 else "")


@pytest.mark.parametrize("executor", ["inline", "processes"])
def test_what_the_drivers_engine_samples_is_what_the_trace_of_a_worker_holds(executor):
    async def far(attempt):
        return await asyncio.gather(*(attempt(errand(n), f"t{n}", "policy") for n in range(5)))

    async def here():
        model = EngineChat(Drifting(None), chatml.create(chatml.Config(), tokenizer()))
        async with Arena(PLAN) as arena:
            return await arena.play(order(errand(0), "t0"), model, time.monotonic)

    played, _ = on_farm(far, executor=executor, engine=Drifting(None), at_once=2)
    same, (graded,) = asyncio.run(here())
    assert codec.encode(played[0][0].segments) == codec.encode(same.segments)
    assert played[0][0].cost.tokens_out == same.cost.tokens_out > 1
    assert [verdict.score for _, verdict in played] == [graded.score] * 5 == [1] * 5


def test_an_engine_that_is_lost_is_a_fault_of_the_attempt_and_damaged_weights_end_the_run():
    def broken(error):
        def script(ids, params):
            raise error

        return ScriptedEngine(script)

    async def play(attempt):
        return await attempt(errand(0), "t0", "policy")

    (trace, verdict), _ = on_farm(
        play, executor="inline", engine=broken(FaultError("engine-lost", "engines.x", "gone"))
    )
    assert (verdict.status, verdict.why) == ("infra", "engine-lost")
    assert (trace.fault.where, trace.fault.detail) == ("engines.x", "gone")
    with pytest.raises(CorruptError, match="version 3"):
        on_farm(play, executor="inline", engine=broken(CorruptError("version 3 is damaged")))


def test_what_is_sampled_for_a_cancelled_attempt_or_a_dead_worker_is_aborted():
    class Endless(ScriptedEngine):
        def __init__(self):
            super().__init__(lambda ids, params: itertools.repeat(5))

        @property
        def running(self):
            return len(self._running)

    engine, long = Endless(), Limits(tokens=10**9, turn_tokens=10**9)

    async def play(attempt):
        tasks = [msgspec.structs.replace(errand(n), limits=long) for n in range(2)]
        running = [asyncio.ensure_future(attempt(task, task.id, "policy")) for task in tasks]
        while engine.running < 2:
            await asyncio.sleep(0.01)
        running[0].cancel()
        while engine.running > 1:
            await asyncio.sleep(0.01)
        _, failed = await attempt(errand(99, "fail"), "t99")
        os.kill(int(failed.evidence[0].text.split()[-1]), signal.SIGKILL)
        with pytest.raises(FaultError, match="worker-lost"):
            await running[1]
        while engine.running:
            await asyncio.sleep(0.01)

    params = SamplingParams(max_tokens=10**9)
    on_farm(play, executor="processes", engine=engine, count=1, params=params)


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
