"""Where answers are graded outside of a run: a domain with its sandboxes, verifiers and pool, and no model.

`play` sends given assistant messages through the real environment (gold answers, attacks, recorded rollouts); `judge`
grades an answer that is delivered as it is. Limits of the episode are the caller's.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from temper.core import registry
from temper.core.blame import Fault, FaultError, boundary
from temper.core.protocols import Domain, Resources, SandboxBackend, Verifier
from temper.core.task import Case, Message, Task
from temper.core.trace import Segment, Stop, Trace, Verdict
from temper.verifiers.grading import grade
from temper.verifiers.pool import Pool

FULL = 1 - 1e-9  # a score from here on counts as the full one
_AT_ONCE = 8

T = TypeVar("T")


class Bench:
    """Made by `opened`, or of a backend and a pool that are open."""

    def __init__(self, domain: Domain, sandboxes: SandboxBackend, pool: Pool) -> None:
        self.domain, self.sandboxes, self.pool = domain, sandboxes, pool
        self._verifiers: dict[bytes, Verifier] = {}

    def verifier(self, task: Task) -> Verifier:
        name, settings = self.domain.verifier(task)
        key = msgspec.json.encode((name, settings), order="deterministic")
        if key not in self._verifiers:
            module, config = registry.configure("verifiers", {"kind": name, **settings})
            self._verifiers[key] = module.create(config, self.pool, self.sandboxes)
        return self._verifiers[key]

    async def play(
        self, task: Task, script: Sequence[Message], name: str = "play", stop: Stop | None = None
    ) -> tuple[Trace, dict[str, bytes]]:
        """The episode in which the assistant says `script`, with its artifacts. `stop`: how it ended, if known."""
        resources = Resources(self.sandboxes, time.monotonic, random.Random(name))
        said: list[Message] = []
        artifacts: dict[str, bytes] = {}
        fault: Fault | None = None
        ended: Stop = "turns"
        environment = self.domain.environment(task, resources)
        try:
            with boundary("environment-broken", f"domains.{task.domain}"):
                said += (await environment.start()).messages
                for message in script:
                    observation = await environment.step(message)
                    said += (message, *observation.messages)
                    if observation.done:
                        ended = "done" if message.calls else "answer"
                        break
                artifacts = await environment.artifacts()
        except FaultError as error:
            fault, ended = error.fault, "fault"
        finally:
            await environment.close()
        return _trace(task, name, said, stop if stop and fault is None else ended, fault), artifacts

    async def judge(self, task: Task, case: Case) -> Verdict:
        """The verdict on a delivered answer, as at the end of an episode that says nothing else."""
        trace = _trace(task, case.why, (*task.messages, Message("assistant", case.answer)), "answer")
        return await self.grade(task, trace, case.artifacts)

    async def grade(self, task: Task, trace: Trace, artifacts: Mapping[str, bytes]) -> Verdict:
        return await grade(task, trace, artifacts, self.verifier(task))


@contextlib.asynccontextmanager
async def opened(domain: Domain, workers: int = 2, **pool: Any) -> AsyncIterator[Bench]:
    """A bench with sandboxes and a pool of its own."""
    sandboxes = boxes_for(domain)
    try:
        async with Pool(workers=workers, **pool) as workers_:
            yield Bench(domain, sandboxes, workers_)
    finally:
        await sandboxes.close()


async def each(
    items: Sequence[Any], work: Callable[[Any], Awaitable[T]], done: Callable[[int], None] = lambda count: None
) -> list[T]:
    """`work` on every item, a few at a time, with the results in order; `done` hears how many there are."""
    room, count = asyncio.Semaphore(_AT_ONCE), itertools.count(1)

    async def one(item: Any) -> T:
        async with room:
            result = await work(item)
        done(next(count))
        return result

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(item)) for item in items]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in running]


def boxes_for(domain: Domain) -> SandboxBackend:
    """Local sandboxes; those of a domain whose boxes need `packages` see the ones that are installed here."""
    paths = {"paths": [sys.prefix]} if getattr(domain, "packages", ()) else {}
    module, config = registry.configure("sandboxes", {"kind": "local", **paths})
    return module.create(config)


def _trace(task: Task, name: str, said: Sequence[Message], stop: Stop, fault: Fault | None = None) -> Trace:
    segments = (Segment.given(tuple(said), []),)
    return Trace(id=name, task=task.id, domain=task.domain, seed=0, segments=segments, stop=stop, fault=fault)
