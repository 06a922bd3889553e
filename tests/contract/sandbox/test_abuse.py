"""The abuse suite on the local backend, as whoever runs the tests, and as a plain user where that is root.

Other backends have it in their own tests (tests/unit/sandboxes).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from temper.cli import check

CHECK = ["-m", "temper.cli", "check", "sandbox", "local"]
NIGHTLY = ("rollback/", "fidelity/")  # the longest; tests/contract/test_snapshots and test_sandboxes have some of each
DAILY = tuple(f"{family}/" for family in check.load("sandbox").FAMILIES if f"{family}/" not in NIGHTLY)
TITLES = [
    pytest.param(case.title, marks=pytest.mark.nightly if case.title.startswith(NIGHTLY) else ())
    for case in check.load("sandbox").cases()
]
FINE = ("shut", "skipped") if os.geteuid() == 0 else ("shut", "skipped", "excused")
Doors = dict[str, list[str]]


def options(families: tuple[str, ...], path: Path) -> list[str]:
    return [*CHECK, *(word for family in families for word in ("--only", family)), "--save", str(path)]


def doors_of(done: subprocess.CompletedProcess[str], path: Path) -> Doors:
    assert path.exists(), done.stdout[-2000:] + done.stderr[-4000:]
    (column,) = json.loads(path.read_text()).values()
    return column["doors"]


@cache
def here(families: tuple[str, ...]) -> Doors:
    """As whoever runs the tests."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "doors.json"
        argv = [sys.executable, *options(families, path)]
        return doors_of(subprocess.run(argv, capture_output=True, text=True, timeout=600), path)


@pytest.mark.timeout(620)
@pytest.mark.parametrize("title", TITLES)
def test_the_door_is_shut(title: str) -> None:
    door, why = here(NIGHTLY if title.startswith(NIGHTLY) else DAILY)[title]
    assert door in FINE, why


@pytest.mark.timeout(620)
def test_no_more_than_what_is_missing_here_is_skipped() -> None:
    """A suite that skips everything would pass: the reasons for skipping are these."""
    doors = here(DAILY)
    reasons = {why for door, why in doors.values() if door == "skipped"}
    known = ("does not work inside", "no C compiler", "not on this processor", "not offered")
    assert [why for why in reasons if not any(word in why for word in known)] == []
    assert sum(door == "shut" for door, _ in doors.values()) > 150


@pytest.mark.timeout(620)
@pytest.mark.parametrize(
    "families", [("climb/",), pytest.param((*DAILY, *NIGHTLY), marks=pytest.mark.nightly)], ids=["climb", "all"]
)
def test_doors_are_shut_to_a_plain_user_or_reported(families: tuple[str, ...], as_plain_user) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        path = Path(folder) / "doors.json"
        doors = doors_of(as_plain_user(*options(families, path), seconds=600), path)
    assert {name: why for name, (door, why) in doors.items() if door == "open"} == {}
    assert len(doors) > 100
