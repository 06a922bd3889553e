"""Thousands of sandboxes come and go, some aborted, their owner killed: everything is back to where it was.

The onlooker is this process, made the reaper of orphans: whatever a dead owner's tree leaves becomes its child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

OWNER = Path(__file__).with_name("cycles.py")
PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
def reaper() -> Iterator[None]:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def descendants() -> list[int]:
    """Live processes below this one, zombies reaped first."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    found, todo = [], [os.getpid()]
    while todo:
        with contextlib.suppress(OSError):  # it has just ended
            for task in Path(f"/proc/{todo.pop()}/task").iterdir():
                children = [int(pid) for pid in (task / "children").read_text().split()]
                found += children
                todo += children
    return found


def census(temporary: Path, launchers: list[str]) -> dict[str, object]:
    groups = {f"temper.{pid}" for pid in launchers}
    return {
        "processes": descendants(),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "cgroups": [f"{top}/{n}" for top, names, _ in os.walk("/sys/fs/cgroup") for n in names if n in groups],
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "disk": sorted(str(path) for path in temporary.rglob("*")),
        "shared memory": sorted(str(path) for path in Path("/dev/shm").glob("*temper*")),
    }


def settled(wanted: dict[str, object], temporary: Path, launchers: list[str], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while (found := census(temporary, launchers)) != wanted:
        assert time.monotonic() < end, {key: value for key, value in found.items() if value != wanted[key]}
        time.sleep(0.05)


def play(cycles: int, kills: int, temporary: Path) -> int:
    """Cycles done. Owners are killed `kills` times, at random moments, and replaced; the last one ends by itself."""
    launchers: list[str] = []
    chance = random.Random(1)
    before = census(temporary, launchers)
    total = 0
    while total < cycles or kills:
        allowed = chance.randrange(1, max(2, cycles // (kills + 1))) if kills else 0  # cycles until the axe falls
        wanted = cycles - total if not kills else 10**9
        argv = [sys.executable, str(OWNER), "local", str(wanted), str(total)]
        owner = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(temporary)})
        assert owner.stdout is not None
        with owner.stdout:
            launchers.append(owner.stdout.readline().strip())
            done, last = 0, ""
            for last in owner.stdout:
                done = int(last) if last.strip().isdigit() else done
                if kills and done >= allowed:
                    time.sleep(chance.random() * 0.05)
                    owner.send_signal(signal.SIGKILL)
                    break
        status = owner.wait()
        if kills:
            assert status == -signal.SIGKILL
            kills -= 1
        else:
            assert (status, last.split()) == (0, ["left", "0", "0", "0"]), last
            done = wanted
        total += done
        settled(before, temporary, launchers)
    return total


def test_hundreds_of_cycles_leave_nothing(reaper: None, tmp_path: Path) -> None:
    assert play(240, 2, tmp_path) >= 240


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_ten_thousand_cycles_leave_nothing(reaper: None, tmp_path: Path) -> None:
    assert play(10_000, 10, tmp_path) >= 10_000
