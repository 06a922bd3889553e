"""The pool over the fake backend, which counts: admission, warm sandboxes, leases, what happens to the forgotten."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from temper.core.blame import FaultError
from temper.core.protocols import Sessions, Snapshots
from temper.core.task import SandboxSpec
from temper.sandboxes import fake, local
from temper.sandboxes.pool import Config, Pace, Pool, leased

GIB = 1 << 30


def within(
    test: Callable[[Pool, fake.Backend], Awaitable[None]], free: Callable[[], int] = lambda: 64 * GIB, **settings: Any
) -> None:
    async def run() -> None:
        backend = fake.create(fake.Config(commands={"true": ""}))
        pool = Pool(backend, Config(**{"warm": 0, **settings}), free)
        try:
            await test(pool, backend)
        finally:
            await pool.close()
        assert backend.open_now == 0

    asyncio.run(asyncio.wait_for(run(), 20))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.005)


def test_a_warm_sandbox_is_handed_out_once_and_with_its_own_files() -> None:
    async def test(pool: Pool, backend: fake.Backend) -> None:
        spec = SandboxSpec(files={"who": b"first"})
        first = await pool.open(spec)
        await until(lambda: [alive.state for alive in pool.census()].count("warm") == 1)
        started = backend.opened
        second = await pool.open(msgspec.structs.replace(spec, files={"who": b"second"}))
        assert backend.opened == started or second.id != first.id
        assert (await first.get("who"), await second.get("who")) == (b"first", b"second")
        assert second.id == "fake-2"  # the warm one: the third is only its replacement

    within(test, warm=4)


def test_a_warm_sandbox_is_not_used_for_another_spec() -> None:
    async def test(pool: Pool, backend: fake.Backend) -> None:
        boxes = [await pool.open(SandboxSpec())]
        await until(lambda: backend.opened == 2)
        boxes.append(await pool.open(SandboxSpec(memory=GIB)))
        assert boxes[1].id == "fake-3"

    within(test, warm=4)


def test_who_finds_the_pool_full_waits_in_order_and_then_it_is_our_fault() -> None:
    async def test(pool: Pool, backend: fake.Backend) -> None:
        held = [await pool.open(SandboxSpec(), f"rollout-{n}") for n in range(2)]
        order: list[str] = []

        async def one(name: str) -> None:
            box = await pool.open(SandboxSpec(), name)
            order.append(name)
            await box.close()

        waiting = [asyncio.create_task(one(name)) for name in ("a", "b")]
        await asyncio.sleep(0.02)
        assert order == []
        await held[0].close()
        await asyncio.gather(*waiting)
        assert order == ["a", "b"]
        again = await pool.open(SandboxSpec())
        with pytest.raises(FaultError, match=r"rollout-9 waited 0.3 s .* 2 of 2 alive.*leased rollout-1") as caught:
            await pool.open(SandboxSpec(), "rollout-9")
        assert caught.value.fault.ruling.masked
        assert caught.value.fault.ruling.blame == "infrastructure"
        await again.close()
        await (await pool.open(SandboxSpec())).close()  # one that gave up does not keep its place

    within(test, alive=2, wait=0.3)


def test_a_start_waits_for_memory() -> None:
    free = [64 * GIB]

    async def test(pool: Pool, backend: fake.Backend) -> None:
        first = await pool.open(SandboxSpec())
        free[0] = GIB + (100 << 20)
        waiting = asyncio.create_task(pool.open(SandboxSpec(memory=200 << 20)))
        await asyncio.sleep(0.1)
        assert backend.opened == 1
        free[0] = 2 * GIB
        assert (await waiting).id != first.id

    within(test, lambda: free[0], reserve=GIB)


def test_the_first_sandbox_is_admitted_on_the_smallest_machine() -> None:
    async def test(pool: Pool, backend: fake.Backend) -> None:
        assert (await pool.open(SandboxSpec())).id == "fake-1"

    within(test, lambda: 0)


def test_warm_sandboxes_give_way_to_those_who_wait() -> None:
    async def test(pool: Pool, backend: fake.Backend) -> None:
        await (await pool.open(SandboxSpec())).close()
        await until(lambda: [alive.state for alive in pool.census()] == ["warm"])
        boxes = [await pool.open(SandboxSpec(memory=GIB)) for _ in range(2)]
        assert len(boxes) == 2

    within(test, alive=2, warm=1, wait=2.0)


def test_a_lease_ends_with_its_rollout_however_that_ends() -> None:
    async def test(pool: Pool, backend: fake.Backend) -> None:
        async def rollout(name: str) -> None:
            async with leased(pool, name) as sandboxes:
                box = await sandboxes.open(SandboxSpec())
                assert isinstance(box, Snapshots)
                forks = await box.fork(await box.snapshot(), 2)
                await asyncio.sleep(60)
                del forks

        tasks = [asyncio.create_task(rollout(name)) for name in ("one", "two")]
        await until(lambda: backend.open_now == 6)
        assert {(alive.whom, alive.state) for alive in pool.census()} == {("one", "leased"), ("two", "leased")}
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        assert [alive.whom for alive in pool.census()] == ["two"] * 3
        assert backend.open_now == 3
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)

    within(test)


def test_a_forgotten_sandbox_is_closed() -> None:
    async def test(pool: Pool, backend: fake.Backend) -> None:
        await pool.open(SandboxSpec())
        gc.collect()
        await until(lambda: backend.open_now == 0)

    within(test)


def test_a_leased_sandbox_can_do_what_its_backends_can() -> None:
    async def run() -> None:
        pool = Pool(local.create(), Config(warm=0))
        try:
            box = await pool.open(SandboxSpec(files={"a": b"1"}))
            assert isinstance(box, Snapshots)
            assert isinstance(box, Sessions)
            assert {"snapshot", "rollback", "session"} <= vars(box).keys()  # where Python 3.12 and later look for them
            state = await box.snapshot()
            await box.put("a", b"2")
            await box.rollback(state, hashed=True)  # type: ignore[call-arg]
            assert (await (await box.session()).send("cat a")).stdout == b"1"
        finally:
            await pool.close()

    asyncio.run(run())


def test_who_waits_when_the_pool_closes_is_told() -> None:
    async def run() -> None:
        pool = Pool(fake.create(), Config(warm=0, alive=1))
        held = await pool.open(SandboxSpec())
        waiting = [asyncio.create_task(pool.open(SandboxSpec())) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert [alive.id for alive in pool.census()] == [held.id]
        await pool.close()
        for ended in await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5):
            assert isinstance(ended, FaultError)
            assert ended.fault.detail == "the pool is closed"

    asyncio.run(run())


def test_more_start_at_once_until_starts_get_slow() -> None:
    pace = Pace()
    for _ in range(200):
        pace.started(0.002)
    assert pace.limit > 15
    for _ in range(20):
        pace.started(0.05)
    assert pace.limit < 3


def test_a_warm_sandbox_that_died_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("temper.sandboxes.pool._DOUBTFUL", 0.0)

    async def run() -> None:
        pool = Pool(local.create(), Config(warm=1))
        try:
            first = await pool.open(SandboxSpec())
            await until(lambda: len(pool.census()) == 2)
            warm = next(held for held in pool._boxes if not held.whom)
            warm.box.channel.close()  # type: ignore[attr-defined]
            fresh = await pool.open(SandboxSpec(files={"a": b"1"}))
            assert fresh.id not in (first.id, warm.box.id)
            assert (await fresh.exec(["cat", "a"])).stdout == b"1"
        finally:
            await pool.close()

    asyncio.run(run())


def test_rollouts_that_are_cancelled_at_any_moment_leave_nothing() -> None:
    rng = random.Random(7)
    specs = [SandboxSpec(memory=size << 20, files={"size": str(size).encode()}) for size in (64, 128, 192)]

    async def rollout(pool: Pool, name: str) -> None:
        async with leased(pool, name) as sandboxes:
            spec = rng.choice(specs)
            box = await sandboxes.open(spec)
            assert isinstance(box, Snapshots)
            forks = await box.fork(await box.snapshot(), rng.randrange(3))
            other = await sandboxes.open(specs[0])
            found = await box.exec(["sh", "-c", f"sleep 0.0{rng.randrange(5)}; cat size"])
            assert found.stdout == spec.files["size"]
            assert len(forks) < 3
            if rng.random() < 0.5:
                await other.close()

    async def run() -> None:
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        pool = Pool(local.create(), Config(alive=90, warm=4, wait=20.0))
        for wave in range(4):
            tasks = [asyncio.create_task(rollout(pool, f"{wave}-{n}")) for n in range(20)]
            for task in rng.sample(tasks, 8):
                await asyncio.sleep(rng.random() * 0.05)
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert [end for end in ended if end is not None and not isinstance(end, asyncio.CancelledError)] == []
        assert {alive.state for alive in pool.census()} <= {"warm"}
        assert len(pool.census()) <= 4
        await pool.close()
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208

    asyncio.run(run())
