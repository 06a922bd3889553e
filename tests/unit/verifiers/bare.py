"""A sandbox backend that isolates nothing: a folder and a process. Only for tests of what the code verifier decides."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from temper.core.blame import FaultError
from temper.core.protocols import Enforcement
from temper.core.task import SandboxSpec
from temper.core.trace import Exit


class BareSandbox:
    id = "bare"
    capabilities: Mapping[str, Enforcement] = {}

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec, self.folder = spec, Path(tempfile.mkdtemp())

    async def exec(
        self, argv: Sequence[str], *, stdin: bytes = b"", seconds: float = 10.0, env: Mapping[str, str] | None = None
    ) -> Exit:
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=-1, stdout=-1, stderr=-1, cwd=self.folder, start_new_session=True
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(stdin), seconds)
        except TimeoutError:
            process.kill()
            await process.wait()
            return Exit(cause="deadline", evidence=f"wall clock {seconds} s")
        code = process.returncode or 0
        cause = "signalled" if code < 0 else "exited"
        return Exit(cause=cause, code=abs(code), stdout=out, stderr=err, seconds=time.monotonic() - began)

    async def put(self, path: str, content: bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    async def get(self, path: str) -> bytes:
        return (self.folder / path).read_bytes()

    async def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class BareBackend:
    lost = False  # set: every open fails as a lost machine would
    opened: list[SandboxSpec]

    def __init__(self) -> None:
        self.opened = []

    async def open(self, spec: SandboxSpec) -> BareSandbox:
        if self.lost:
            raise FaultError("backend-lost", "bare", "gone")
        self.opened.append(spec)
        box = BareSandbox(spec)
        for path, content in spec.files.items():
            await box.put(path, content)
        return box

    def capabilities(self) -> Mapping[str, Enforcement]:
        return {}

    async def close(self) -> None: ...
