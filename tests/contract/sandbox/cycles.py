"""Owner of many sandboxes: create, run, destroy, again and again, a fifth aborted at random points.

`python cycles.py BACKEND CYCLES SEED` prints the launcher's process id, a line for every 20 cycles done, and at the
end its own descriptors, threads and children beyond those that it began with. Killed at any moment by the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import threading
from pathlib import Path

from temper.core import registry
from temper.core.protocols import SandboxBackend, Snapshots
from temper.core.task import SandboxSpec

AT_ONCE = 16
LEAVES_SOMETHING = "setsid sleep 1000 >/dev/null 2>&1 & head -c 100000 /dev/zero > f; echo done"


async def cycle(backend: SandboxBackend, chance: random.Random) -> None:
    box = await backend.open(SandboxSpec(files={"a": b"1"}))
    try:
        said = await box.exec(["sh", "-c", LEAVES_SOMETHING], seconds=60)
        assert said.stdout == b"done\n", said
        if isinstance(box, Snapshots) and chance.random() < 0.3:
            state = await box.snapshot()
            await box.put("a", b"2")
            for twin in await box.fork(state, 1):
                await twin.close()
            await box.rollback(state)
    finally:
        await box.close()


async def aborted(backend: SandboxBackend, chance: random.Random) -> None:
    running = asyncio.create_task(cycle(backend, chance))
    await asyncio.sleep(chance.random() * 0.06)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def run(name: str, cycles: int, seed: int) -> None:
    chance = random.Random(seed)
    before = holdings()
    backend = registry.find("sandboxes", name).create()
    print(backend.process.pid, flush=True)
    begun = done = 0

    async def worker() -> None:
        nonlocal begun, done
        while begun < cycles:
            begun += 1
            await (aborted if chance.random() < 0.2 else cycle)(backend, chance)
            done += 1
            if done % 20 == 0:
                print(done, flush=True)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    await backend.close()
    print("left", *(now - then for now, then in zip(holdings(), before, strict=True)), flush=True)


def holdings() -> tuple[int, int, int]:
    """Descriptors, threads, children of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count(), len(children)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
