"""Living on after the command, the sandbox or the owner: sessions, orphans, deaf and stopped processes, aborts."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

from temper.core.blame import FaultError
from temper.core.protocols import Snapshots

from . import SMALL, Case, OpenError, SkipError, Stage

SLEEP = "sleep MARKER"
LEAVERS = {
    "setsid": f"setsid {SLEEP} >/dev/null 2>&1 &",
    "holding the output pipe": f"setsid {SLEEP} &",
    "double fork": f"( ( {SLEEP} >/dev/null 2>&1 & ) & )",
    "signals ignored": f"( trap '' TERM HUP INT QUIT; {SLEEP} >/dev/null 2>&1 ) &",
    "stopped": f"{SLEEP} >/dev/null 2>&1 & kill -STOP $!",
    "many generations": f"for i in 1 2 3 4 5 6; do setsid sh -c 'setsid {SLEEP} >/dev/null 2>&1 &' & done",
}


def leaver(name: str, script: str) -> Case:
    """After the command nothing is left; the same when its deadline ends it while it waits for its children."""

    async def attack(stage: Stage) -> None:
        ended = await stage.sh(script, seconds=5)
        await stage.look_around()
        if ended.cause != "exited":
            raise OpenError(f"the command was held up by what it left behind: {ended.cause} {ended.evidence}")
        ended = await stage.sh(f"{script}\n{SLEEP}", seconds=0.4)
        if ended.cause != "deadline":
            raise OpenError(f"a command that sleeps ended as {ended.cause}")
        await stage.look_around()

    return Case(family="outlive", name=name, attack=attack)


async def _in_vfork(stage: Stage) -> None:
    """The parent hangs in vfork, where it takes no signal but KILL, while its child sleeps."""
    ended = await stage.door("vfork", stage.marker, seconds=0.5)
    if ended.cause != "deadline":
        raise OpenError(f"ended as {ended.cause}")


async def _cancelled(stage: Stage) -> None:
    """A command that is cancelled anywhere dies; the sandbox goes on."""
    for _ in range(8):
        running = asyncio.create_task(stage.sh(f"setsid {SLEEP} & {SLEEP}", seconds=30))
        await asyncio.sleep(random.random() * 0.05)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    if (await stage.run(["echo", "on"], seconds=20)).stdout != b"on\n":
        raise OpenError("the sandbox does not go on")
    await stage.look_around()


async def _closed(stage: Stage) -> None:
    """Closing a sandbox in the middle of a command ends the command."""
    box = await stage.backend.open(SMALL)
    script = f"setsid {SLEEP} & {SLEEP}".replace("MARKER", stage.marker)
    running = asyncio.create_task(box.exec(["sh", "-c", script], seconds=30))
    await asyncio.sleep(0.2)
    await box.close()
    await asyncio.gather(running, return_exceptions=True)
    await stage.look_around()


async def _opening_aborted(stage: Stage) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(30):
        opening = asyncio.create_task(stage.backend.open(SMALL))
        await asyncio.sleep(random.random() * 0.006)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await opening).close()
    end = asyncio.get_running_loop().time() + 40
    while (left := len(list(Path("/proc/self/fd").iterdir())) - before) > 0:
        await asyncio.sleep(0.05)
        if asyncio.get_running_loop().time() < end:
            continue
        raise OpenError(f"{left} descriptors are left of openings that were aborted")


async def _snapshots_aborted(stage: Stage) -> None:
    """A snapshot or rollback that is cancelled leaves a sandbox whose content is either state, or a lost one."""
    with contextlib.suppress(FaultError):
        await _abort_snapshots(stage)


async def _abort_snapshots(stage: Stage) -> None:
    if not isinstance(stage.box, Snapshots):
        raise SkipError("no snapshots")
    await stage.sh("for i in $(seq 200); do echo one > f$i; done")
    first = await stage.box.snapshot()
    for turn in range(6):
        await stage.sh("for i in $(seq 200); do echo two > f$i; done", seconds=20)
        for act in (stage.box.snapshot, lambda: stage.box.rollback(first)):  # type: ignore[attr-defined]
            task = asyncio.create_task(act())
            await asyncio.sleep(random.random() * 0.004 * turn)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        content = (await stage.sh("cat f* | sort | uniq -c", seconds=20)).stdout.split()
        if content not in ([b"200", b"one"], [b"200", b"two"]):
            raise OpenError(f"a mixture of two states: {content}")
    await stage.box.rollback(first)
    if (await stage.sh("cat f* | sort | uniq -c")).stdout.split() != [b"200", b"one"]:
        raise OpenError("rolled back to another state")


CASES = [
    *(leaver(name, script) for name, script in LEAVERS.items()),
    Case(family="outlive", name="in vfork", attack=_in_vfork),
    Case(family="outlive", name="command cancelled", attack=_cancelled),
    Case(family="outlive", name="closed under a command", attack=_closed),
    Case(family="outlive", name="opening aborted", attack=_opening_aborted),
    Case(family="outlive", name="snapshot and rollback aborted", attack=_snapshots_aborted),
]
