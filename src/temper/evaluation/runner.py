"""Runs tasks once each, some at a time. What a rollout is, which model and which sandbox: `run_one` knows.

A rollout that was lost to a fault of ours is run again; nothing that the policy did is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from temper.core.task import Message, Task
from temper.core.trace import Trace, Verdict
from temper.evaluation.outcome import Outcome
from temper.scheduling.placement import worker_of
from temper.scheduling.retry import exhausted

ATTEMPTS = 3

S = TypeVar("S")
T = TypeVar("T")


async def evaluate(
    tasks: Sequence[Task],
    run_one: Callable[[Task], Awaitable[tuple[Trace, Verdict]]],
    concurrency: int,
    *,
    stage: str = "",
    progress: Callable[[int, Outcome], None] = lambda done, outcome: None,
) -> list[Outcome]:
    """Outcomes in the order of `tasks`. `progress` hears how many are done. What `run_one` raises ends all of them."""
    return await each(tasks, lambda task: judged(task, lambda: run_one(task), stage), concurrency, progress)


async def each(
    items: Sequence[S],
    work: Callable[[S], Awaitable[T]],
    at_once: int,
    progress: Callable[[int, T], None] = lambda done, result: None,
) -> list[T]:
    """What `work` makes of all items, in their order, so many at a time. What it raises ends all of them."""
    found: dict[int, T] = {}
    waiting = iter(enumerate(items))

    async def some() -> None:
        for at, item in waiting:
            found[at] = await work(item)
            progress(len(found), found[at])

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(items))):
                group.create_task(some())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [found[at] for at in range(len(items))]


def with_examples(task: Task, demonstrations: Sequence[tuple[Message, ...]]) -> Task:
    """The same task with example conversations before its own; its system message stays first, theirs are left out."""
    system = tuple(m for m in task.messages[:1] if m.role == "system")
    examples = tuple(m for shown in demonstrations for m in shown if m.role != "system")
    return replace(task, messages=(*system, *examples, *task.messages[len(system) :]))


async def settled(run_one: Callable[[], Awaitable[tuple[Trace, Verdict]]]) -> tuple[int, Trace, Verdict]:
    """How many attempts it took, and the last: one that was lost to a fault of ours is made again."""
    attempts, workers = 0, set[str]()
    while True:
        trace, verdict = await run_one()
        attempts += 1
        workers |= {worker_of(trace)} - {""}
        if verdict.status != "infra" or exhausted(attempts, len(workers), ATTEMPTS):
            return attempts, trace, verdict


async def judged(task: Task, run_one: Callable[[], Awaitable[tuple[Trace, Verdict]]], stage: str) -> Outcome:
    """One rollout, made again while it is lost to faults of ours, as an outcome of `stage`."""
    attempts, trace, verdict = await settled(run_one)
    return Outcome(
        task=task.id,
        domain=task.domain,
        level=task.level,
        stage=stage,
        verdict=verdict,
        stop=trace.stop,
        tokens=sum(int((segment.versions >= 0).sum()) for segment in trace.segments),
        attempts=attempts,
    )
