"""A sandbox without a kernel: files in memory and scripted commands, with snapshots. For tests; it isolates nothing.

`commands` is either a table from a command line (as a shell would quote it) to its standard output or its `Exit`, or a
function `(files, argv, stdin) -> Exit` that may change `files` (path to content). Other commands exit with 127.
"""

from __future__ import annotations

import errno
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.protocols import Enforcement
from temper.core.task import SandboxSpec
from temper.core.trace import Exit
from temper.sandboxes.box import refuse_weak

Program = Callable[[dict[str, bytes], Sequence[str], bytes], Exit]


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    commands: Any = {}  # dict[str, str | Exit] | Program


def create(config: Config | None = None) -> Backend:
    return Backend(config or Config())


class Backend:
    """Counts its sandboxes; `open_now` is how many are not closed."""

    def __init__(self, config: Config) -> None:
        self.program = config.commands if callable(config.commands) else _table(config.commands)
        self.opened = 0
        self.open_now = 0

    def capabilities(self) -> Mapping[str, Enforcement]:
        return {"isolation": "none", "snapshots": "hard"}

    async def open(self, spec: SandboxSpec) -> Fake:
        refuse_weak(spec, "fake", self.capabilities())
        return Fake(self, dict(spec.files))

    async def close(self) -> None:
        self.open_now = 0


class Fake:
    """One sandbox; implements `Snapshots` too. A fork can go back to the snapshot that it began with."""

    def __init__(
        self, backend: Backend, files: dict[str, bytes], snapshots: dict[str, dict[str, bytes]] | None = None
    ) -> None:
        backend.opened += 1
        backend.open_now += 1
        self.id = f"fake-{backend.opened}"
        self.capabilities = backend.capabilities()
        self._backend = backend
        self._files = files
        self._snapshots = snapshots or {}
        self._closed = False

    async def exec(
        self, argv: Sequence[str], *, stdin: bytes = b"", seconds: float = 10.0, env: Mapping[str, str] | None = None
    ) -> Exit:
        self._check()
        return self._backend.program(self._files, argv, stdin)

    async def put(self, path: str, content: bytes) -> None:
        self._check()
        pure = PurePosixPath(path)
        if not pure.parts or pure.is_absolute() or ".." in pure.parts:
            raise PermissionError(errno.EACCES, "outside the working directory", path)
        if len(path) >= 4096:
            raise OSError(errno.ENAMETOOLONG, "File name too long", path)
        self._files[path] = content

    async def get(self, path: str) -> bytes:
        self._check()
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._files[path]

    async def snapshot(self) -> str:
        self._check()
        name = f"{self.id}-{len(self._snapshots)}"
        self._snapshots[name] = dict(self._files)
        return name

    async def rollback(self, snapshot: str) -> None:
        self._check()
        self._files = dict(self._snapshots[snapshot])

    async def fork(self, snapshot: str, n: int) -> list[Fake]:
        self._check()
        content = self._snapshots[snapshot]
        return [Fake(self._backend, dict(content), {snapshot: content}) for _ in range(n)]

    async def close(self) -> None:
        self._backend.open_now -= not self._closed
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise FaultError("backend-lost", self.id, "the sandbox is closed")


def _table(commands: Mapping[str, str | Exit]) -> Program:
    def run(files: dict[str, bytes], argv: Sequence[str], stdin: bytes) -> Exit:
        found = commands.get(shlex.join(argv))
        if found is None:
            return Exit(cause="exited", code=127, stderr=f"{argv[0]}: not scripted\n".encode())
        return found if isinstance(found, Exit) else Exit(cause="exited", stdout=found.encode())

    return run
