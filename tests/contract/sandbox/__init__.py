"""The abuse suite: what hostile programs try in a sandbox, and what an onlooker outside must see.

A case is a few lines: family, name, the program that runs inside (shell, Python, or a door of `doors.c`), the limit it
rests on, how it must end. Programs print `OPEN what` for each door that they got through and `tried` at their end, so
that a probe which fails by itself is not taken for a shut door. After every case the onlooker looks: the neighbour's
sandbox answers and its file is untouched, the host's canary is untouched, no process of the attack is left.

Run by `temper check sandbox NAME` and by `test_abuse.py`. Not here: how a backend is made (`temper.core.registry`),
cycles (`test_cycles.py`), our own faults (`test_faults.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from temper.core.blame import FaultError
from temper.core.protocols import Sandbox, SandboxBackend
from temper.core.task import SandboxSpec
from temper.core.trace import Exit

FAMILIES = ("exhaust", "outlive", "reach", "look", "climb", "rollback", "fidelity", "blame")
SMALL = SandboxSpec(memory=192 << 20, disk=8 << 20, file_size=4 << 20, pids=20, output=4096, cpu_seconds=20.0)
ROOMY = SandboxSpec(memory=1 << 30, disk=128 << 20, pids=128)
PRELUDE = """
import ctypes, errno, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def tries(name, act):
    try: found = act()
    except (OSError, RuntimeError, ValueError): return
    if found is not None and found is not False: print("OPEN", name, found if found is not True else "", flush=True)
"""


class OpenError(Exception):
    """The attack came through, or an honest program did not work; the text says how."""


class SkipError(Exception):
    """The case cannot be tried here; the text says what is missing."""


class Case(Struct, frozen=True, kw_only=True):
    """`limit` is the capability that the door hangs on: it may be open only where that is not hard."""

    family: str
    name: str
    attack: Callable[[Stage], Awaitable[None]]
    limit: str = "isolation"
    spec: SandboxSpec = SMALL

    @property
    def title(self) -> str:
        return f"{self.family}/{self.name}"


class Result(Struct, frozen=True):
    """`open` where the attack came through, `excused` where that was expected: the limit is not hard here."""

    case: str
    door: Literal["shut", "open", "excused", "skipped"]
    why: str = ""
    seconds: float = 0.0


class Stage:
    """Where a case plays: its sandbox, a neighbour, and the host's canary, whose `secret` nobody inside may read."""

    def __init__(self, make: Callable[[], SandboxBackend], folder: Path) -> None:
        self.make = make
        self.folder = folder
        self.canary = folder / "canary"
        self.secret = secrets.token_hex(12)
        self.marker = f"1{secrets.randbelow(10**9):09d}"  # seconds that nobody else sleeps for
        self.canary.write_text(self.secret)
        self.canary.chmod(0o666)
        self.backend: SandboxBackend
        self.neighbour: Sandbox
        self.box: Sandbox

    async def begin(self) -> None:
        self.backend = self.make()
        self.neighbour = await self.backend.open(SandboxSpec(files={"secret": self.secret.encode()}))

    async def run(self, argv: list[str], **how: Any) -> Exit:
        return await self.box.exec(argv, **how)

    async def sh(self, script: str, **how: Any) -> Exit:
        return await self.run(["sh", "-c", script.replace("MARKER", self.marker)], **how)

    async def py(self, program: str, **how: Any) -> Exit:
        return await self.run(["python3", "-c", PRELUDE + program.replace("MARKER", self.marker)], **how)

    async def door(self, name: str, *argv: str, **how: Any) -> Exit:
        """Runs one door of `doors.c`."""
        await self.box.put("doors", self.doors())
        return await self.run(["sh", "-c", 'chmod +x doors && exec ./doors "$@"', "sh", name, *argv], **how)

    async def need(self, *argv: str) -> None:
        """Skips where this command does not work inside."""
        if not (await self.run(list(argv), seconds=30)).ok:
            raise SkipError(f"{' '.join(argv)} does not work inside")

    def survivors(self) -> list[int]:
        """Processes of the host, this one left out, whose arguments hold the marker."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    if self.marker.encode() in (entry / "cmdline").read_bytes():
                        found.append(int(entry.name))
        return found

    def doors(self) -> bytes:
        """`doors.c`, compiled once, static where that links."""
        program = self.folder / "doors"
        if not program.exists():
            if shutil.which("cc") is None:
                raise SkipError("no C compiler on the host")
            source = Path(__file__).with_name("doors.c")
            for linking in (["-static"], []):
                done = subprocess.run(["cc", "-O1", "-w", *linking, "-o", program, source], capture_output=True)
                if done.returncode == 0:
                    break
            else:
                raise SkipError(f"doors.c does not compile: {done.stderr.decode()[-300:]}")
        return program.read_bytes()

    async def look_around(self) -> None:
        """The onlooker. Raises OpenError for what an attack did outside its sandbox."""
        try:
            answer = await self.neighbour.exec(["cat", "secret"], seconds=20)
        except FaultError as error:
            raise OpenError(f"the neighbour is lost: {error}") from error
        if answer.stdout != self.secret.encode():
            raise OpenError(f"the neighbour no longer answers: {answer.cause} {answer.text!r}")
        if self.canary.read_text() != self.secret:
            self.canary.write_text(self.secret)
            raise OpenError("the host's canary was written")
        end = time.monotonic() + 5
        while left := self.survivors():
            if time.monotonic() > end:
                raise OpenError(f"processes outlive their sandbox: {left}")
            await asyncio.sleep(0.02)


def judge(found: Exit, causes: Iterable[str] = ("exited",)) -> None:
    """Raises OpenError unless the program ended as it must, reports no open door, and, if it exited, was not cut."""
    said = found.stdout.decode("utf-8", "replace")
    opened = [line.removeprefix("OPEN ") for line in said.splitlines() if line.startswith("OPEN ")]
    if opened:
        raise OpenError("; ".join(opened))
    if found.cause not in causes:
        text = found.text[-300:]
        raise OpenError(f"ended as {found.cause} ({found.evidence}), expected {' or '.join(causes)}: {text}")
    if found.cause == "exited" and causes == ("exited",) and not said.endswith("tried\n"):
        raise OpenError(f"the probe did not reach its end: {found.text[-300:]}")


def shell(family: str, name: str, script: str, *causes: str, seconds: float = 20.0, **more: Any) -> Case:
    """A case that runs a shell script. Without `causes` it must exit by itself."""

    async def attack(stage: Stage) -> None:
        judge(await stage.sh(script if causes else f"{script}\necho tried", seconds=seconds), causes or ("exited",))

    return Case(family=family, name=name, attack=attack, **more)


def python(family: str, name: str, program: str, *causes: str, seconds: float = 20.0, **more: Any) -> Case:
    async def attack(stage: Stage) -> None:
        tail = "" if causes else "\nprint('tried')"
        judge(await stage.py(program + tail, seconds=seconds), causes or ("exited",))

    return Case(family=family, name=name, attack=attack, **more)


def works(name: str, script: str, expected: str, needs: str = "", seconds: float = 60.0) -> Case:
    """An honest program: the script must print exactly `expected`. `needs` is a command that must be there."""

    async def attack(stage: Stage) -> None:
        if needs:
            await stage.need("sh", "-c", needs)
        found = await stage.sh(script, seconds=seconds)
        if (found.cause, found.stdout.decode("utf-8", "replace")) != ("exited", expected):
            raise OpenError(f"{found.cause} {found.evidence}: {found.text[-600:]}")

    return Case(family="fidelity", name=name, attack=attack, spec=ROOMY)


def cases() -> list[Case]:
    found: list[Case] = []
    for family in FAMILIES:
        found += importlib.import_module(f".{family}", __name__).CASES
    return found


async def examine(
    make: Callable[[], SandboxBackend],
    chosen: Iterable[Case],
    expected_open: Mapping[str, str],
    told: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Plays the cases, one after another, on one backend. A backend that a case destroyed is made anew."""
    found: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        stage = Stage(make, Path(folder))
        await stage.begin()
        try:
            for case in chosen:
                result = await _play(stage, case, expected_open)
                told(result)
                found.append(result)
                if "neighbour" in result.why:
                    await stage.backend.close()
                    await stage.begin()
        finally:
            await stage.backend.close()
    return found


async def _play(stage: Stage, case: Case, expected_open: Mapping[str, str]) -> Result:
    begin = time.monotonic()
    door, why = "shut", ""
    try:
        stage.box = await stage.backend.open(case.spec)
        try:
            await asyncio.wait_for(case.attack(stage), 110)
        finally:
            await stage.box.close()
        await stage.look_around()
    except SkipError as skipped:
        door, why = "skipped", str(skipped)
    except OpenError as error:
        door, why = "open", str(error)
    except Exception as error:  # the boundary to the backend under test
        door, why = "open", f"{type(error).__name__}: {error}"
    if door == "open" and case.title in expected_open:
        offered = stage.backend.capabilities()
        enforced = offered.get(case.limit, "none")
        if case.limit == "isolation" and offered.get("own kernel") == "hard":
            enforced = "that of a kernel of its own"
        if enforced != "hard":
            door, why = "excused", f"{case.limit} is {enforced}: {expected_open[case.title]}"
    result = Result(case.title, door, why)  # type: ignore[arg-type]
    return structs.replace(result, seconds=round(time.monotonic() - begin, 3))


from . import doors as doors  # noqa: E402  after what it needs
