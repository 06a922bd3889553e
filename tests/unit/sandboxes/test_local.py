"""What the local backend says before a sandbox runs: refusals, missing paths, wire format, doctor."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from temper.core.errors import ConfigError, MissingError, RefusedError
from temper.core.task import SandboxSpec
from temper.sandboxes import doctor, local, wire

ROOT = Path(__file__).parents[3]


def test_extra_paths_are_seen_but_not_written() -> None:
    header = ROOT / "native" / "sandbox.h"

    async def run() -> None:
        backend = local.create(local.Config(paths=(str(header.parent),)))
        try:
            box = await backend.open(SandboxSpec())
            assert (await box.exec(["cat", str(header)])).stdout == header.read_bytes()
            assert (await box.exec(["touch", str(header)])).code != 0
        finally:
            await backend.close()

    asyncio.run(run())


def test_extra_paths_must_exist_and_not_be_private_inside() -> None:
    with pytest.raises(MissingError, match="/nowhere"):
        local.create(local.Config(paths=("/nowhere",)))
    with pytest.raises(ConfigError, match="/proc is private"):
        local.create(local.Config(paths=("/proc/self",)))


def test_an_unknown_base_is_refused() -> None:
    async def run() -> None:
        backend = local.create()
        try:
            with pytest.raises(RefusedError, match="debian"):
                await backend.open(SandboxSpec(base="debian"))
        finally:
            await backend.close()

    asyncio.run(run())


WITHOUT_NETWORK_NAMESPACES = """
import asyncio
from temper.core.blame import FaultError
from temper.core.task import SandboxSpec
from temper.sandboxes import local
async def main():
    backend = local.create()
    try:
        await backend.open(SandboxSpec())
    except FaultError as error:
        print(backend.hello.privileged, error)
    await backend.close()
asyncio.run(main())
"""


def test_a_set_up_that_fails_names_its_step() -> None:
    """As the root of a user namespace, which owns no ids but one, and may make no network namespace."""
    script = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
    argv = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", sys.executable, "-c"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([*argv, WITHOUT_NETWORK_NAMESPACES], capture_output=True, text=True, env=environment)
    assert done.stdout.startswith("0 local-"), done.stderr
    assert "backend-lost: make namespaces: No space left on device" in done.stdout


def test_a_command_with_a_nul_is_refused_by_us() -> None:
    with pytest.raises(ValueError, match="NUL"):
        wire.pack_exec(["echo", "a\0b"], {}, b"", 1.0)


def test_the_words_for_ends_are_those_of_the_helper() -> None:
    header = (ROOT / "native" / "sandbox.h").read_text()
    words = re.search(r"enum \{ (EXITED[^}]*) \}", header)
    assert words
    assert tuple(words[1].lower().split(", ")) == wire.ENDED


def test_doctor_has_a_line_for_every_limit() -> None:
    lines = doctor.report()
    assert {what for what, _, _ in lines} >= {"isolation", "memory", "cpu_seconds", "pids", "disk", "network"}
    assert all(why for _, _, why in lines)
    assert [line for line in lines if line[1] == "none"] == []


def test_doctor_names_the_switch_that_forbids(tmp_path: Path) -> None:
    (tmp_path / "knob").write_text("1\n")
    switches = {str(tmp_path / "knob"): ("1", "turn it"), str(tmp_path / "absent"): ("1", "never")}
    assert doctor.forbidden(switches) == ["turn it"]
