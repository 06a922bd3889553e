"""One sandbox of the local backend: commands, sessions, files, snapshots, over the channel to its box (`wire`).

What the box does is in `native/box.c`; how it comes to be is in `local`. It has no rules of its own: why a command
ended is decided in `evidence`.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from temper.core.blame import FaultError
from temper.core.protocols import Sandbox
from temper.core.task import SandboxSpec
from temper.core.trace import Exit
from temper.sandboxes import evidence, network, sessions, wire
from temper.sandboxes.images.records import Image

if TYPE_CHECKING:
    from temper.sandboxes.local import Backend

_COPYING = 60.0  # seconds for a disk to be packed or unpacked
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # of an image that has its own /usr
_WAYS_OUT = {errno.ELOOP: errno.EACCES, errno.EXDEV: errno.EACCES}
GRACE = 20.0  # seconds beyond a command's own limit until the helper itself counts as lost

# Ways in which a program can spoil a file: it counts as not there, and is not our error nor the task's.
_UNREADABLE = (errno.ELOOP, errno.EXDEV, errno.ENOTDIR, errno.ENXIO, errno.EACCES, errno.EFBIG, errno.ENAMETOOLONG)


class Local:
    """One sandbox. See `core.protocols.Sandbox` and `Snapshots`; commands run one after another.

    A snapshot holds the whole disk (/sandbox, /tmp, /dev/shm). Taking it stops running processes and lets them go on;
    going back to it ends them. A fork can go back to the snapshot that it began with, also when the first sandbox is
    no more. Costs are those of a copy: about 3 µs a file to take, 5 to go back or fork, and the bytes that changed.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        spec: SandboxSpec,
        image: Image | None,
        proxy: network.Proxy | None,
        channel: wire.Channel,
        gone: asyncio.Future[None],
    ) -> None:
        self.id = name
        self.capabilities = backend.capabilities()
        self._backend = backend
        self._spec = spec
        self._image = image
        self._proxy = proxy
        self._channel = channel
        self._gone = gone
        self._snapshots: dict[str, int] = {}
        path = backend.path if image is None or image.over_host else _PATH
        home = {"HOME": "/sandbox", "USER": "user", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "PATH": path}
        if spec.network != "none":
            home |= network.environment()
        self.env = {**home, "PYTHONDONTWRITEBYTECODE": "1", **(image.env if image else {}), **spec.env}

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
            stream, data = wire.unpack_number(payload[:4]), payload[4:]
            said[stream].extend(data)
            if heard is not None:
                heard(stream, data)

        reply = await self._channel.call(wire.EXEC, request, seconds + GRACE, what, heard=hear)
        ending = wire.unpack_ending(reply)
        if ending.ended == "unwritten":
            _raise(wire.pack_number(ending.code), os.fsdecode(ending.stdout), _WAYS_OUT)
        found = evidence.exit_of(ending, self._spec, seconds)
        if found.cause == "backend-lost":
            raise FaultError("backend-lost", self.id, found.evidence)
        if heard is not None:
            found = msgspec.structs.replace(found, stdout=bytes(said[0]), stderr=bytes(said[1]))
        return found

    async def warm(self, argv: Sequence[str], env: Mapping[str, str], seconds: float) -> str:
        """Starts the interpreter that FORKED commands are forks of. Gives why it did not get warm, "" when it did."""
        request = wire.pack_exec(argv, {**self.env, **env})
        return (await self._channel.call(wire.WARM, request, seconds, "an interpreter to get warm")).decode()

    async def session(self, language: sessions.Language = "shell") -> sessions.Session:
        """A shell (bash) or a Python that keeps its state between turns. MissingError where there is none."""
        env = {**self.env, "PS1": "", "PS2": ""}
        flags = wire.STREAMED | wire.INTERACTIVE
        request = wire.pack_exec(sessions.command(language), env, flags=flags)
        return await sessions.begun(sessions.Session(await self._lane(), self._spec, request, language))

    async def terminal(
        self, argv: Sequence[str] = ("bash", "--norc"), *, rows: int = 24, columns: int = 80
    ) -> sessions.Terminal:
        """A program at a terminal of that size."""
        env = {**self.env, "TERM": "xterm-256color"}
        flags = wire.STREAMED | wire.INTERACTIVE | wire.TERMINAL
        request = wire.pack_exec(argv, env, flags=flags, screen=(rows, columns))
        terminal = sessions.Terminal(await self._lane(), self._spec, request)
        await asyncio.sleep(0)  # the request goes out before the first key
        return terminal

    async def _lane(self) -> wire.Channel:
        """A socket of its own to this sandbox, for a command that goes on while others run."""
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        with theirs:
            try:
                await self._channel.call(wire.LANE, b"", GRACE, "a lane", theirs)
            except BaseException:
                mine.close()
                raise
        loop = asyncio.get_running_loop()
        _, lane = await loop.create_connection(lambda: wire.Channel(self.id), sock=mine)
        await lane.ready(GRACE)
        return lane

    async def put(self, path: str, content: bytes) -> None:
        """Replaces a file, with the directories above it. Raises PermissionError for a way out, OSError when full."""
        await self.put_all({path: content})

    async def put_all(self, files: Mapping[str, bytes]) -> None:
        reply = await self._channel.call(wire.PUT, wire.pack_put(files), GRACE, "files to be written")
        _raise(reply, os.fsdecode(reply[4:]), _WAYS_OUT)

    async def get(self, path: str) -> bytes:
        reply = await self._channel.call(wire.GET, os.fsencode(path), GRACE, f"{path!r} to be read")
        _raise(reply, path, dict.fromkeys(_UNREADABLE, errno.ENOENT))
        return reply[4:]

    async def snapshot(self) -> str:
        reply = await self._channel.call(wire.SNAPSHOT, b"", _COPYING, "a snapshot")
        number = wire.unpack_number(reply)
        name = f"{self.id}/{number}"
        self._snapshots[name] = number
        return name

    async def rollback(self, snapshot: str, *, hashed: bool = False) -> None:
        """Every file made again is checked by stat; with `hashed`, the whole disk against the manifest's hash."""
        request = wire.pack_number(self._number(snapshot)) + bytes([hashed])
        await self._channel.call(wire.RETURN, request, _COPYING, "a rollback")

    async def fork(self, snapshot: str, n: int) -> list[Sandbox]:
        number = self._number(snapshot)
        forking = [asyncio.create_task(self._fork(snapshot, number)) for _ in range(n)]
        try:
            return list(await asyncio.gather(*forking))
        except BaseException:
            for task in forking:
                task.cancel()
            for found in await asyncio.gather(*forking, return_exceptions=True):
                if isinstance(found, Local):
                    await found.close()
            raise

    async def manifest(self, snapshot: str | None = None) -> str:
        """The BLAKE2b hash of the disk, now or then: names, types, modes, times, attributes, links, contents."""
        request = b"" if snapshot is None else wire.pack_number(self._number(snapshot))
        return (await self._channel.call(wire.HASH, request, _COPYING, "a manifest")).hex()

    async def _fork(self, snapshot: str, number: int) -> Local:
        giver, taker = socket.socketpair()
        with giver, taker:
            request = wire.pack_number(number)
            giving = asyncio.create_task(self._channel.call(wire.GIVE, request, _COPYING, "a snapshot", giver))
            try:
                box = await self._backend.start(msgspec.structs.replace(self._spec, files={}), self._image)
            except BaseException:
                giving.cancel()
                await asyncio.gather(giving, return_exceptions=True)
                raise
            try:
                await giving
                await box._channel.call(wire.ACCEPT, b"", _COPYING, "a snapshot to be unpacked", taker)
            except BaseException:
                box._channel.close()
                raise
        box._snapshots[snapshot] = 0
        return box

    def _number(self, snapshot: str) -> int:
        if snapshot not in self._snapshots:
            known = ", ".join(self._snapshots) or "none"
            raise LookupError(f"sandbox {self.id} has no snapshot {snapshot!r}; it has {known}")
        return self._snapshots[snapshot]

    async def close(self) -> None:
        """Everything in the sandbox is dead, and its mounts and cgroup are gone, when this returns."""
        self._channel.close()
        await self._backend.unserve(self._proxy)
        done, _ = await asyncio.wait((self._gone,), timeout=GRACE)
        if not done:
            raise FaultError("backend-lost", self.id, f"waited {GRACE:.0f} s for the sandbox to end")


def _raise(reply: bytes, path: str, as_if: Mapping[int, int]) -> None:
    number = int.from_bytes(reply[:4], sys.byteorder)
    if number:
        raise OSError(as_if.get(number, number), os.strerror(number), path)
