"""Determinism and injected faults: the same answer has the same verdict everywhere, and what breaks is never a zero.

Each trial gives "" where the verifier holds, else what went wrong. `Example`s are answers with the verdicts they got.
Run as a program, this is the other process of the trial that needs one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from temper.core import registry
from temper.core.blame import FaultError
from temper.core.errors import BackendError
from temper.core.task import Case, SandboxSpec, Task
from temper.core.trace import Verdict
from temper.verifiers.audit.bench import Bench, boxes_for, opened

_KILLS = 20
_PROCESS_SECONDS = 600.0


class Example(NamedTuple):
    task: Task
    case: Case
    verdict: Verdict


async def trials(bench: Bench, domain: Mapping[str, Any], examples: Sequence[Example]) -> dict[str, str]:
    """By name. `domain`: the table that names and configures it, for a process that knows nothing of us."""
    again = await verdicts(bench, examples)
    async with opened(bench.domain, cached=0) as fresh:
        cold = await verdicts(fresh, examples[::-1])
        killed = await under_kills(fresh, examples, _KILLS, masks=True)
    threaded = await asyncio.to_thread(lambda: asyncio.run(_elsewhere(bench, examples)))
    process = await asyncio.to_thread(_in_a_process, domain, examples)
    return {
        "the same when repeated": _changed(examples, again),
        "the same from fresh workers, in reverse": _changed(examples, cold[::-1]),
        "the same from another thread": _changed(examples, threaded),
        "the same from another process": _changed(examples, process),
        "the same while workers are killed": killed,
        "no sandbox to be had: masked": await _lost(bench, examples, "open"),
        "sandbox lost at work: masked": await _lost(bench, examples, "exec"),
    }


async def under_kills(
    bench: Bench, examples: Sequence[Example], kills: int, seconds: float = 0.1, masks: bool = False
) -> str:
    """Grade the examples over and over while `kills` workers are killed, one every `seconds` on average.

    `masks`: meanwhile a verdict may be lost, as that of a check which takes longer than the time between two kills has
    to be; once the kills are over, each is there again.
    """
    done = 0

    def kill() -> None:
        nonlocal done
        rng = random.Random(0)
        while done < kills and not stop.wait(rng.uniform(0, 2 * seconds)):
            if pids := bench.pool.pids:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(rng.choice(pids), signal.SIGKILL)
                    done += 1

    stop = threading.Event()
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        while not (changed := _changed(examples, await verdicts(bench, examples), masks)):
            if done >= kills or not (done or bench.pool.pids):  # a verifier without workers has none to lose
                break
    finally:
        stop.set()
        await asyncio.to_thread(killer.join)
    return changed or (_changed(examples, await verdicts(bench, examples)) if masks else "")


async def verdicts(bench: Bench, examples: Sequence[Example]) -> list[Verdict]:
    return list(await asyncio.gather(*(bench.judge(task, case) for task, case, _ in examples)))


def _changed(examples: Sequence[Example], found: Sequence[Verdict], masks: bool = False) -> str:
    """The first verdict that is another now, "" when none is. `masks`: one that was lost to us is none."""
    for (task, case, want), got in zip(examples, found, strict=True):
        if masks and got.status == "infra":
            continue
        for field in want.__struct_fields__:
            before, after = getattr(want, field), getattr(got, field)
            if before != after:
                return f"{task.id}, {case.why}: {field} {before!r} became {after!r}"
    return ""


async def _elsewhere(bench: Bench, examples: Sequence[Example]) -> list[Verdict]:
    """The same pool from another event loop; a sandbox backend belongs to one."""
    sandboxes = boxes_for(bench.domain)
    try:
        return await verdicts(Bench(bench.domain, sandboxes, bench.pool), examples)
    finally:
        await sandboxes.close()


def _in_a_process(domain: Mapping[str, Any], examples: Sequence[Example]) -> list[Verdict]:
    """A new interpreter with another hash seed, which makes its tasks itself."""
    asked = msgspec.msgpack.encode((domain, [(task.split, task.level, task.id, case) for task, case, _ in examples]))
    env = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    argv = [sys.executable, "-m", __name__]
    done = subprocess.run(argv, input=asked, capture_output=True, env=env, timeout=_PROCESS_SECONDS)
    if done.returncode:
        raise BackendError(f"the second process of the audit ended with {done.returncode}: {done.stderr[-800:]!r}")
    return msgspec.msgpack.decode(done.stdout, type=list[Verdict])


async def _answer(table: dict[str, Any], asked: list[tuple[Any, int, str, Case]]) -> list[Verdict]:
    module, config = registry.configure("domains", table)
    domain = module.create(config)
    tasks = {
        (split, level): {task.id: task for task, _ in zip(domain.tasks(split, level), range(1000), strict=False)}
        for split, level in {(split, level) for split, level, _, _ in asked}
    }
    async with opened(domain) as bench:
        judged = (bench.judge(tasks[split, level][id], case) for split, level, id, case in asked)
        return list(await asyncio.gather(*judged))


async def _lost(bench: Bench, examples: Sequence[Example], at: str) -> str:
    """What uses a sandbox gives no score once it is gone; what uses none is as before."""
    found = await verdicts(Bench(bench.domain, _Lossy(bench.sandboxes, at), bench.pool), examples)  # type: ignore[arg-type]
    return _changed(examples, found, masks=True)


class _Lossy:
    """A backend that has no sandboxes (`at` = "open"), or whose sandboxes are lost when a command runs ("exec")."""

    def __init__(self, real: Any, at: str) -> None:
        self._real, self._at = real, at

    async def open(self, spec: SandboxSpec) -> Any:
        return await self.exec() if self._at == "open" else _Lossy(await self._real.open(spec), self._at)

    async def exec(self, *args: Any, **more: Any) -> Any:
        raise FaultError("backend-lost", "verifiers.audit", "injected")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def main() -> None:
    table, asked = msgspec.msgpack.decode(
        sys.stdin.buffer.read(), type=tuple[dict[str, Any], list[tuple[str, int, str, Case]]]
    )
    sys.stdout.buffer.write(msgspec.msgpack.encode(asyncio.run(_answer(table, asked))))


if __name__ == "__main__":
    main()
