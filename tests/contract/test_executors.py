"""What every executor has to hold: calls take turns, a limit ends the worker, a dead one says so, values are data."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from temper.core import registry
from temper.core.blame import FaultError
from temper.core.errors import BackendError, RefusedError
from temper.core.protocols import Handle

sys.path.insert(0, str(Path(__file__).parent))  # workers get this process's path

COUNTER = "workers:Counter"
EXECUTORS = [
    pytest.param(name, marks=pytest.mark.ray) if name == "ray" else name
    for name in sorted(registry.names("scheduling.executors"))
]


@pytest.fixture(scope="module", params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> Iterator[str]:
    """Its name. Ray is started once for all tests, because a start takes seconds."""
    if request.param == "ray":
        ray = pytest.importorskip("ray")
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    yield request.param
    if request.param == "ray":
        ray.shutdown()


@pytest.fixture
def on_worker(executor: str) -> Callable[[Callable[[Handle], Awaitable[Any]]], Any]:
    """on_worker(f): what f gives, run on a counter that begins at 1."""

    async def run(f: Callable[[Handle], Awaitable[Any]]) -> Any:
        module, config = registry.configure("scheduling.executors", executor)
        workers = module.create(config)
        try:
            return await f(await workers.spawn(COUNTER, {"from": 1}, {"cpus": 1}))
        finally:
            await workers.close()

    return lambda f: asyncio.run(run(f))


def blamed(error: pytest.ExceptionInfo[FaultError]) -> str:
    return error.value.fault.what


def test_state_lives_in_the_worker_and_calls_take_turns(on_worker):
    async def calls(worker):
        return await asyncio.gather(
            *(worker.call(method, 1, seconds=10) for method in ("add", "add_later", "add", "add_later"))
        )

    assert on_worker(calls) == [2, 3, 4, 5]


def test_values_arrive_as_plain_data(on_worker):
    async def calls(worker):
        plain = {"a": [1, 2.5, None, "x", b"\x00"], "b": True}
        array = np.arange(3, dtype=np.int32)
        return [await worker.call("echo", value, seconds=10) for value in (plain, (1, 2), array)]

    plain, pair, array = on_worker(calls)
    assert plain == {"a": [1, 2.5, None, "x", b"\x00"], "b": True}
    assert pair == [1, 2]
    assert array == ["<i4", [3], np.arange(3, dtype=np.int32).tobytes()]


@pytest.mark.parametrize("method", ["sleep", "wait"])
def test_past_its_limit_a_call_ends_the_worker(on_worker, method):
    async def calls(worker):
        with pytest.raises(FaultError, match=f"{method} took more than 0.05 s") as late:
            await worker.call(method, 1.0, seconds=0.05)
        with pytest.raises(FaultError) as after:
            await worker.call("add", 1, seconds=10)
        return blamed(late), blamed(after)

    assert on_worker(calls) == ("wait-limit", "worker-lost")


def test_a_worker_that_ended_is_lost(on_worker):
    async def calls(worker):
        with pytest.raises(FaultError) as during:
            await worker.call("end", seconds=10)
        with pytest.raises(FaultError) as after:
            await worker.call("add", 1, seconds=10)
        return blamed(during), blamed(after)

    assert on_worker(calls) == ("worker-lost", "worker-lost")


def test_closing_ends_a_call_in_flight(on_worker):
    async def calls(worker):
        running = asyncio.ensure_future(worker.call("sleep", 1.0, seconds=10))
        await asyncio.sleep(0.02)
        await worker.close()
        with pytest.raises(FaultError) as error:
            await running
        return blamed(error)

    assert on_worker(calls) == "worker-lost"


def test_a_cancelled_call_ends_the_worker(on_worker):
    async def calls(worker):
        running = asyncio.ensure_future(worker.call("wait", 1.0, seconds=10))
        await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(FaultError, match="wait was cancelled"):
            await worker.call("add", 1, seconds=10)

    on_worker(calls)


def test_what_a_method_raises_is_told_and_the_worker_goes_on(on_worker):
    async def calls(worker):
        with pytest.raises(BackendError, match="ZeroDivisionError"):
            await worker.call("divide", seconds=10)
        with pytest.raises(FaultError, match="somewhere: engine-lost: it is gone"):
            await worker.call("blame", seconds=10)
        with pytest.raises(BackendError, match="has no attribute 'subtract'"):
            await worker.call("subtract", 1, seconds=10)
        return await worker.call("add", 1, seconds=10)

    assert on_worker(calls) == 2


@pytest.mark.parametrize(
    ("factory", "config", "why"),
    [("workers:Missing", {}, "no attribute"), ("no.such:f", {}, "No module"), (COUNTER, {}, "KeyError")],
)
def test_a_worker_that_cannot_be_made_says_why(executor, factory, config, why):
    module, settings = registry.configure("scheduling.executors", executor)
    with pytest.raises(BackendError, match=why):
        asyncio.run(module.create(settings).spawn(factory, config, {}))


def test_what_cannot_be_given_is_refused(executor):
    module, settings = registry.configure("scheduling.executors", executor)
    with pytest.raises(RefusedError, match="gpus=1000"):
        asyncio.run(module.create(settings).spawn(COUNTER, {"from": 1}, {"cpus": 1, "gpus": 1000, "disk": 0}))
