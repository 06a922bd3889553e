"""The fake sandbox: scripted commands and snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from temper.core import registry
from temper.core.protocols import Snapshots
from temper.core.task import SandboxSpec
from temper.core.trace import Exit
from temper.sandboxes import fake


def test_commands_are_scripted_by_line_or_by_function() -> None:
    async def run() -> None:
        module, config = registry.configure("sandboxes", {"kind": "fake", "commands": {"echo 'a b'": "a b\n"}})
        box = await module.create(config).open(SandboxSpec())
        assert (await box.exec(["echo", "a b"])).stdout == b"a b\n"
        assert (await box.exec(["rm"])).code == 127

        def program(files: dict[str, bytes], argv: Sequence[str], stdin: bytes) -> Exit:
            files["log"] = files.get("log", b"") + stdin
            return Exit(cause="oom", evidence="scripted")

        box = await fake.create(fake.Config(commands=program)).open(SandboxSpec(files={"log": b"1"}))
        assert (await box.exec(["anything"], stdin=b"2")).cause == "oom"
        assert await box.get("log") == b"12"

    asyncio.run(run())


def test_snapshots_are_gone_back_to_and_forked() -> None:
    async def run() -> None:
        backend = fake.create()
        box = await backend.open(SandboxSpec(files={"a": b"1"}))
        assert isinstance(box, Snapshots)
        before = await box.snapshot()
        await box.put("a", b"2")
        await box.put("b", b"new")
        one, two = await box.fork(before, 2)
        await one.put("a", b"3")
        assert (await box.get("a"), await one.get("a"), await two.get("a")) == (b"2", b"3", b"1")
        await box.rollback(before)
        assert await box.get("a") == b"1"
        with pytest.raises(FileNotFoundError):
            await box.get("b")
        assert backend.open_now == 3
        for each in (box, one, two, two):
            await each.close()
        assert backend.open_now == 0

    asyncio.run(run())
