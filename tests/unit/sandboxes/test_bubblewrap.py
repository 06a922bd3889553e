"""bubblewrap as the launcher: the helper inside gives the same answers, and the same suite attacks it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable

import pytest

from temper.cli import check
from temper.core.blame import FaultError
from temper.core.errors import BackendError, RefusedError
from temper.core.protocols import Sessions
from temper.core.task import SandboxSpec
from temper.sandboxes import bubblewrap, guest
from temper.sandboxes.zygote import Zygote

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="no bubblewrap on PATH")


def run(test: Callable[[guest.Backend], Awaitable[None]]) -> None:
    async def play() -> None:
        backend = bubblewrap.create()
        try:
            await test(backend)
        finally:
            await backend.close()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_commands_files_and_ends() -> None:
    async def test(backend: guest.Backend) -> None:
        box = await backend.open(SandboxSpec(files={"a/b": b"\0\xff"}, pids=20))
        assert await box.get("a/b") == b"\0\xff"
        said = await box.exec(["sh", "-c", "cat; id -u; pwd; exit 3"], stdin=b"in\n")
        assert (said.cause, said.code, said.stdout) == ("exited", 3, b"in\n1000\n/sandbox\n")
        assert (await box.exec(["sh", "-c", "kill -9 $$"])).evidence == "signal 9"
        assert (await box.exec(["sleep", "9"], seconds=0.2)).cause == "deadline"
        assert (await box.exec(["sh", "-c", "kill -9 1; kill -9 -1; echo on"])).stdout == b"on\n"
        assert (await box.exec(["no-such-command"])).code == 127

    run(test)


def test_what_it_cannot_give_is_refused() -> None:
    async def test(backend: guest.Backend) -> None:
        for spec in (SandboxSpec(require=("memory",)), SandboxSpec(base="image:x"), SandboxSpec(network=("a.org",))):
            with pytest.raises(RefusedError):
                await backend.open(spec)

    run(test)


def test_sessions_are_refused_with_the_reason_and_programs_of_a_zygote_get_a_sandbox_each() -> None:
    async def test(backend: guest.Backend) -> None:
        box = await backend.open(SandboxSpec())
        assert not isinstance(box, Sessions)
        with pytest.raises(AttributeError, match="namespaces"):
            box.session  # noqa: B018
        with pytest.raises(RefusedError, match="sessions is none"):
            await backend.open(SandboxSpec(require=("sessions",)))
        zygote = Zygote(backend, preload=("json",), spec=SandboxSpec(files={"kept": b"1"}))
        program = "import os, sys; print(sorted(os.listdir()), sys.stdin.read(), open('kept').read()); open('x', 'w')"
        for _ in range(2):
            said = await zygote.run(program, stdin=b"in", files={"a": b""})
            assert said.text == "['a', 'kept'] in 1\n"
        assert (await zygote.run("while True: pass", seconds=0.5)).cause == "deadline"
        with pytest.raises(BackendError, match="no_such_module"):
            await Zygote(backend, preload=("no_such_module",)).run("")

    run(test)


def test_a_launcher_that_fails_says_why_and_is_our_fault() -> None:
    class Broken(bubblewrap.Backend):
        def command(self, name: str, spec: SandboxSpec, owner: str, state: str = "") -> list[str]:
            return [*super().command(name, spec, owner)[:-3], "--no-such-option", "x"]

    async def test() -> None:
        with pytest.raises(FaultError, match="no-such-option"):
            await Broken().open(SandboxSpec())

    asyncio.run(test())


@pytest.mark.parametrize(
    "family", ["outlive", "blame", *(pytest.param(f, marks=pytest.mark.nightly) for f in ("exhaust", "climb", "look"))]
)
def test_the_suite_finds_no_door_that_is_not_reported(family: str) -> None:
    suite = check.load("sandbox")
    chosen = [case for case in suite.cases() if case.family == family]
    results = asyncio.run(suite.examine(bubblewrap.create, chosen, bubblewrap.OPEN_DOORS))
    assert [result for result in results if result.door == "open"] == []
