"""One sandbox: commands, sessions, files, snapshots, over the channel to its box (`wire`).

What the box does is in `native/box.c`; how it comes to be is in `local` and `guest`. It has no rules of its own: why a
command ended is decided in `evidence`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from temper.core.blame import FaultError
from temper.core.errors import RefusedError
from temper.core.protocols import Enforcement
from temper.core.task import SandboxSpec
from temper.core.trace import Exit
from temper.sandboxes import evidence, network, sessions, wire
from temper.sandboxes.images.records import Image

if TYPE_CHECKING:
    from temper.sandboxes.local import Backend

_SETTING_UP = 30.0  # seconds
_COPYING = 60.0  # seconds for a disk to be packed or unpacked
_HOME = {"HOME": "/sandbox", "USER": "user", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
_WAYS_OUT = {errno.ELOOP: errno.EACCES, errno.EXDEV: errno.EACCES}
GRACE = 20.0  # seconds beyond a command's own limit until the helper itself counts as lost

# Ways in which a program can spoil a file: it counts as not there, and is not our error nor the task's.
_UNREADABLE = (errno.ELOOP, errno.EXDEV, errno.ENOTDIR, errno.ENXIO, errno.EACCES, errno.EFBIG, errno.ENAMETOOLONG)

AnyBox = TypeVar("AnyBox", bound="Box")


@dataclass(eq=False, repr=False)
class Box:
    """What every sandbox with our helper inside can do. See `core.protocols.Sandbox`; commands run one after another.

    `gone` is done when nothing of it is left.
    """

    id: str
    spec: SandboxSpec
    capabilities: Mapping[str, Enforcement]
    env: Mapping[str, str]
    channel: wire.Channel
    gone: asyncio.Future[Any]

    async def started(self) -> None:
        """It is set up, and has its files."""
        await self.channel.ready(_SETTING_UP)
        if self.spec.files:
            await self.put_all(self.spec.files)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        seconds: float = 10.0,
        env: Mapping[str, str] | None = None,
        heard: Callable[[int, bytes], None] | None = None,
    ) -> Exit:
        """`heard` is given what the command says when it says it: 0 for stdout or 1 for stderr, and the bytes."""
        flags = 0 if heard is None else wire.STREAMED
        request = wire.pack_exec(argv, {**self.env, **(env or {})}, stdin, seconds, flags=flags)
        return await self.execute(request, seconds, f"{argv[0]!r} to end", heard)

    async def execute(
        self, request: bytes, seconds: float, what: str, heard: Callable[[int, bytes], None] | None = None
    ) -> Exit:
        """A packed EXEC request. Raises OSError for files that cannot be written."""
        said = (bytearray(), bytearray())

        def hear(_kind: int, payload: bytes) -> None:
            (stream,), data = wire.NUMBER.unpack(payload[:4]), payload[4:]
            said[stream].extend(data)
            if heard is not None:
                heard(stream, data)

        ending = wire.unpack_ending(await self.channel.call(wire.EXEC, request, seconds + GRACE, what, heard=hear))
        if ending.ended == "unwritten":
            _check(wire.NUMBER.pack(ending.code), os.fsdecode(ending.stdout), _WAYS_OUT)
        found = evidence.exit_of(ending, self.spec, seconds)
        if found.cause == "backend-lost":
            raise FaultError("backend-lost", self.id, found.evidence)
        if heard is not None:
            found = msgspec.structs.replace(found, stdout=bytes(said[0]), stderr=bytes(said[1]))
        return found

    async def put(self, path: str, content: bytes) -> None:
        """Replaces a file, with the directories above it. Raises PermissionError for a way out, OSError when full."""
        await self.put_all({path: content})

    async def put_all(self, files: Mapping[str, bytes]) -> None:
        reply = await self.channel.call(wire.PUT, wire.pack_put(files), GRACE, "files to be written")
        _check(reply, os.fsdecode(reply[4:]), _WAYS_OUT)

    async def get(self, path: str) -> bytes:
        reply = await self.channel.call(wire.GET, os.fsencode(path), GRACE, f"{path!r} to be read")
        _check(reply, path, dict.fromkeys(_UNREADABLE, errno.ENOENT))
        return reply[4:]

    async def close(self) -> None:
        """Everything in the sandbox is dead, and its mounts and cgroup are gone, when this returns."""
        self.channel.close()
        done, _ = await asyncio.wait((self.gone,), timeout=GRACE)
        if not done:
            raise FaultError("backend-lost", self.id, f"waited {GRACE:.0f} s for the sandbox to end")


@dataclass(eq=False, repr=False)
class Local(Box):
    """One of the local backend. See `core.protocols.Snapshots` and `Sessions`.

    A snapshot holds the whole disk (/sandbox, /tmp, /dev/shm). Taking it stops running processes and lets them go on;
    going back to it ends them. A fork can go back to the snapshot that it began with, also when the first sandbox is
    no more. Costs are those of a copy: about 3 µs a file to take, 5 to go back or fork, and the bytes that changed.
    """

    backend: Backend
    image: Image | None
    proxy: network.Proxy | None
    snapshots: dict[str, int] = field(default_factory=dict)

    async def warm(self, argv: Sequence[str], env: Mapping[str, str], seconds: float) -> str:
        """Starts the interpreter that FORKED commands are forks of. Gives why it did not get warm, "" when it did."""
        request = wire.pack_exec(argv, {**self.env, **env})
        return (await self.channel.call(wire.WARM, request, seconds, "an interpreter to get warm")).decode()

    async def session(self, language: sessions.Language = "shell") -> sessions.Session:
        """A shell (bash) or a Python that keeps its state between turns. MissingError where there is none."""
        env = {**self.env, "PS1": "", "PS2": ""}
        request = wire.pack_exec(sessions.command(language), env, flags=wire.STREAMED | wire.INTERACTIVE)
        return await sessions.Session(await self._lane(), self.spec, request, language).begun()

    async def terminal(
        self, argv: Sequence[str] = ("bash", "--norc"), *, rows: int = 24, columns: int = 80
    ) -> sessions.Terminal:
        """A program at a terminal of that size."""
        env = {**self.env, "TERM": "xterm-256color"}
        flags = wire.STREAMED | wire.INTERACTIVE | wire.TERMINAL
        request = wire.pack_exec(argv, env, flags=flags, screen=(rows, columns))
        return await sessions.Terminal(await self._lane(), self.spec, request).begun()

    async def _lane(self) -> wire.Channel:
        """A socket of its own to this sandbox, for a command that goes on while others run."""
        mine, theirs = socket.socketpair()
        lane = wire.Channel(self.id)
        try:
            with theirs:
                await self.channel.call(wire.LANE, b"", GRACE, "a lane", theirs)
            await asyncio.get_running_loop().create_connection(lambda: lane, sock=mine)
            await lane.ready(GRACE)
        except BaseException:
            lane.close()
            mine.close()
            raise
        return lane

    async def snapshot(self) -> str:
        (number,) = wire.NUMBER.unpack(await self.channel.call(wire.SNAPSHOT, b"", _COPYING, "a snapshot"))
        name = f"{self.id}/{number}"
        self.snapshots[name] = number
        return name

    async def rollback(self, snapshot: str, *, hashed: bool = False) -> None:
        """Every file made again is checked by stat; with `hashed`, the whole disk against the manifest's hash."""
        await self.channel.call(wire.RETURN, self._number(snapshot) + bytes([hashed]), _COPYING, "a rollback")

    async def fork(self, snapshot: str, n: int) -> list[Local]:
        number = self._number(snapshot)
        return await all_of(self._fork(snapshot, number) for _ in range(n))

    async def manifest(self, snapshot: str | None = None) -> str:
        """The BLAKE2b hash of the disk, now or then: names, types, modes, times, attributes, links, contents."""
        request = b"" if snapshot is None else self._number(snapshot)
        return (await self.channel.call(wire.HASH, request, _COPYING, "a manifest")).hex()

    async def close(self) -> None:
        self.channel.close()
        if self.proxy is not None:
            await self.proxy.close()
        await super().close()

    async def _fork(self, snapshot: str, number: bytes) -> Local:
        box: Local | None = None
        giver, taker = socket.socketpair()
        with giver, taker:
            giving = asyncio.create_task(self.channel.call(wire.GIVE, number, _COPYING, "a snapshot", giver))
            try:
                box = await self.backend.start(msgspec.structs.replace(self.spec, files={}), self.image)
                await giving
                await box.channel.call(wire.ACCEPT, b"", _COPYING, "a snapshot to be unpacked", taker)
            except BaseException:
                giving.cancel()
                await asyncio.gather(giving, return_exceptions=True)
                if box is not None:
                    await box.close()
                raise
        box.snapshots[snapshot] = 0
        return box

    def _number(self, snapshot: str) -> bytes:
        if snapshot not in self.snapshots:
            known = ", ".join(self.snapshots) or "none"
            raise LookupError(f"sandbox {self.id} has no snapshot {snapshot!r}; it has {known}")
        return wire.NUMBER.pack(self.snapshots[snapshot])


def surroundings(spec: SandboxSpec, path: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a sandbox's commands."""
    return {**_HOME, "PATH": path, **(more or {}), **spec.env}


async def all_of(starting: Iterable[Awaitable[AnyBox]]) -> list[AnyBox]:
    """All of these sandboxes, or none: when one fails, the others end."""
    tasks = [asyncio.ensure_future(one) for one in starting]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(found, Box):
                await found.close()
        raise


def refuse_weak(spec: SandboxSpec, backend: str, offered: Mapping[str, Enforcement]) -> None:
    """Raises RefusedError unless all limits that the spec requires are hard."""
    if weak := [f"{name} is {offered.get(name, 'none')}" for name in spec.require if offered.get(name) != "hard"]:
        raise RefusedError(f"the task requires hard limits; with {backend} {', '.join(weak)}: see `temper doctor`")


def _check(reply: bytes, path: str, as_if: Mapping[int, int]) -> None:
    """Raises the OSError that the reply begins with; `as_if`: errors told as others."""
    (number,) = wire.NUMBER.unpack(reply[:4])
    if number:
        raise OSError(as_if.get(number, number), os.strerror(number), path)
