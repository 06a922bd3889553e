"""Thousands of sandboxes come and go, some aborted, their owner killed: everything is back to where it was.

The onlooker is this process, made the reaper of orphans: whatever a dead owner's tree leaves becomes its child.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

OWNER = Path(__file__).with_name("cycles.py")
Descendants = Callable[[], list[int]]


def census(descendants: Descendants, temporary: Path, launchers: list[str]) -> dict[str, object]:
    groups = {f"temper.{pid}" for pid in launchers}
    return {
        "processes": descendants(),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "cgroups": [f"{top}/{n}" for top, names, _ in os.walk("/sys/fs/cgroup") for n in names if n in groups],
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "disk": sorted(str(path) for path in temporary.rglob("*")),
        "shared memory": sorted(str(path) for path in Path("/dev/shm").glob("*temper*")),
    }


def settled(
    wanted: dict[str, object], descendants: Descendants, temporary: Path, launchers: list[str], seconds: float = 20.0
) -> None:
    end = time.monotonic() + seconds
    while (found := census(descendants, temporary, launchers)) != wanted:
        assert time.monotonic() < end, {key: value for key, value in found.items() if value != wanted[key]}
        time.sleep(0.05)


def play(cycles: int, kills: int, descendants: Descendants, temporary: Path) -> int:
    """Cycles done. Owners are killed `kills` times, at random moments, and replaced; the last one ends by itself."""
    launchers: list[str] = []
    chance = random.Random(1)
    before = census(descendants, temporary, launchers)
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
        settled(before, descendants, temporary, launchers)
    return total


def test_hundreds_of_cycles_leave_nothing(descendants: Descendants, tmp_path: Path) -> None:
    assert play(240, 2, descendants, tmp_path) >= 240


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_ten_thousand_cycles_leave_nothing(descendants: Descendants, tmp_path: Path) -> None:
    assert play(10_000, 10, descendants, tmp_path) >= 10_000
