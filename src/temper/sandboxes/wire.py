"""The native helper's wire format (`native/sandbox.h`) and the channel to one of its boxes.

Frames are (size, kind) and a payload, native byte order, both ends on one machine. Requests are answered in order,
one at a time. What the numbers of an exec reply mean is decided in `evidence`, not here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.errors import RefusedError
from temper.core.task import SandboxSpec

NUMBER = struct.Struct("=I")
SIZE = struct.Struct("=2H")  # of a terminal: rows, columns
_FRAME = struct.Struct("=II")
_OPEN = struct.Struct("=10Q2048s")
_NOTE = struct.Struct("=6IQ")
_EXEC = struct.Struct("=7I2H")
_REPLY = struct.Struct("=Ii8QII")
_CHUNK = 16 << 10  # of one read; asyncio's own 256 KiB are given back to the system and faulted in again each time
READY, EXEC, KILL, PUT, GET, DONE, FAILED = b"RXKPGDE"
SNAPSHOT, RETURN, HASH, GIVE, ACCEPT = b"SBHVA"
WARM, LANE, INPUT, INTERRUPT, RESIZE, SAID, TURN = b"WLICZOU"
FRESH, FORKED, STREAMED, INTERACTIVE, TERMINAL = 1, 2, 4, 8, 16  # flags of EXEC
ENDED = ("exited", "signalled", "deadline", "output", "memory", "cpu", "cancelled", "lost", "unwritten")


class Note(Struct, frozen=True):
    """What the launcher says: greeting or the end of a box. `cgroup` is 0 where no cgroup can be used, else 1 or 2."""

    kind: int
    privileged: int
    cgroup: int
    memory: int
    pids: int
    cpu: int
    id: int


class Ending(Struct, frozen=True):
    """An exec reply as the helper gives it: counters, not yet a cause. Microseconds and bytes."""

    ended: str
    code: int
    wall_us: int
    cpu_us: int
    peak_memory: int
    oom_kills: int
    forks_refused: int
    peak_tasks: int
    disk_free: int
    inodes_free: int
    stdout: bytes
    stderr: bytes


def pack_open(number: int, spec: SandboxSpec, proxy: int = 0, image: str = "") -> bytes:
    """`proxy`: a port that the owner wants handed over, or 0. `image`: layers, as `native/layers.c` has them."""
    if len(image) >= 2048:
        raise RefusedError(f"an image of so many layers that their names take {len(image)} bytes: 2047 at most")
    disk = max(spec.disk, 4096)  # to tmpfs, 0 means no limit
    inodes = 1024 + disk // 4096
    cpu_ms = int(spec.cpu_seconds * 1000)
    limits = (spec.memory, disk, inodes, spec.file_size, spec.pids, cpu_ms, spec.output, spec.open_files)
    return _OPEN.pack(number, *limits, proxy, image.encode())


def unpack_note(packet: bytes) -> Note | str:
    """A note, or the text of a failure."""
    if packet[:1] == bytes([FAILED]):
        return packet[4:].decode("utf-8", "replace")
    return Note(*_NOTE.unpack(packet))


def pack_exec(
    argv: Sequence[str],
    env: Mapping[str, str],
    stdin: bytes = b"",
    seconds: float | None = None,
    *,
    flags: int = 0,
    files: Mapping[str, bytes] | None = None,
    program: bytes = b"",
    screen: tuple[int, int] = (0, 0),
) -> bytes:
    """`seconds` None: no limit. What the rest is for, `struct exec_request` says beside the flags."""
    strings = [os.fsencode(a) for a in argv] + [os.fsencode(f"{k}={v}") for k, v in env.items()]
    if not argv or any(b"\0" in s for s in strings):
        raise ValueError(f"expected a command without NUL characters, got {list(argv)!r}")
    wall_ms = 0 if seconds is None else min(max(int(seconds * 1000), 1), 2**32 - 1)
    packed = pack_put(files or {})
    head = _EXEC.pack(wall_ms, flags, len(argv), len(env), len(packed), len(program), len(stdin), *screen)
    return b"".join([head, *(s + b"\0" for s in strings), packed, program, stdin])


def unpack_ending(payload: bytes) -> Ending:
    ended, *numbers, out, err = _REPLY.unpack_from(payload)
    middle = _REPLY.size + out
    return Ending(ENDED[ended], *numbers, payload[_REPLY.size : middle], payload[middle : middle + err])


def pack_put(files: Mapping[str, bytes]) -> bytes:
    parts: list[bytes] = []
    for path, content in files.items():
        name = os.fsencode(path)
        parts += (_FRAME.pack(len(name), len(content)), name, content)
    return b"".join(parts)


async def socket_with_ready(control: socket.socket, seconds: float) -> socket.socket | None:
    """The listening socket that comes along with READY, which stays to be read; None where none came."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(control.fileno(), lambda: readable.done() or readable.set_result(None))
    try:
        await asyncio.wait((readable,), timeout=seconds)
    finally:
        loop.remove_reader(control.fileno())
    try:
        _, attached, _, _ = control.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return None
    return socket.socket(fileno=int.from_bytes(attached[0][2][:4], sys.byteorder)) if attached else None


class Channel(asyncio.BufferedProtocol):
    """The owner's end of a box's socket. `failed` is why no more calls are answered."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._chunk = bytearray(_CHUNK)
        self._input = bytearray()
        self._waiting: asyncio.Future[bytes] | None = None
        self._heard: Callable[[int, bytes], None] | None = None
        self._turn = asyncio.Lock()
        self._transport: asyncio.Transport | None = None
        self.failed = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._waiting = asyncio.get_running_loop().create_future()  # the box says READY by itself

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._chunk

    def buffer_updated(self, nbytes: int) -> None:
        self._input += memoryview(self._chunk)[:nbytes]
        while len(self._input) >= _FRAME.size:
            size, kind = _FRAME.unpack_from(self._input)
            if len(self._input) < _FRAME.size + size:
                return
            payload = bytes(self._input[_FRAME.size : _FRAME.size + size])
            del self._input[: _FRAME.size + size]
            if kind == FAILED:
                self._fail(payload.decode("utf-8", "replace"))
            elif kind in (SAID, TURN):
                if self._heard is not None:
                    self._heard(kind, payload)
            elif self._waiting and not self._waiting.done():
                self._waiting.set_result(payload)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the sandbox's process has gone ({exc})" if exc else "the sandbox's process has gone")

    def _fail(self, why: str) -> None:
        self.failed = self.failed or why
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(b"")

    async def ready(self, seconds: float) -> None:
        """Waits until the box is set up. Raises FaultError("backend-lost") with the step that failed."""
        async with self._turn:
            await self._answer(seconds, "the sandbox to be set up")

    async def call(
        self,
        kind: int,
        payload: bytes,
        seconds: float,
        what: str,
        attach: socket.socket | None = None,
        heard: Callable[[int, bytes], None] | None = None,
    ) -> bytes:
        """One request, with a socket for the box, and its answer. `heard` is given what a command says meanwhile.

        When cancelled, a running command is killed and its answer dropped.
        """
        async with self._turn:
            if self._waiting is not None:  # the answer of a call that was cancelled
                await self._answer(30.0, "a cancelled call to end")
            if self._transport is None or self.failed:
                raise FaultError("backend-lost", self.where, self.failed)
            self._waiting = asyncio.get_running_loop().create_future()
            self._heard = heard
            frame = _FRAME.pack(len(payload), kind)
            if attach is None:
                self._transport.write(frame)
            else:
                self._attach(frame, attach)
            self._transport.write(payload)
            try:
                return await self._answer(seconds, what)
            except asyncio.CancelledError:
                self.tell(KILL)
                raise

    def tell(self, kind: int, payload: bytes = b"") -> None:
        """Something for the command that runs; dropped when it has ended."""
        if self._transport is not None and not self.failed:
            self._transport.write(_FRAME.pack(len(payload), kind) + payload)

    def _attach(self, frame: bytes, attached: socket.socket) -> None:
        """Past the transport, which cannot; it holds nothing back, since each request has been answered."""
        assert self._transport is not None
        with self._transport.get_extra_info("socket").dup() as own:
            try:
                socket.send_fds(own, [frame], [attached.fileno()])
            except OSError as error:
                raise FaultError("backend-lost", self.where, f"the box does not take a socket: {error}") from error

    async def _answer(self, seconds: float, what: str) -> bytes:
        waiting = self._waiting
        assert waiting is not None
        done, _ = await asyncio.wait((waiting,), timeout=seconds)
        self._waiting = None if done else waiting
        if not done:
            self.failed = f"waited {seconds:.0f} s for {what}"
            self.close()
        if self.failed:
            raise FaultError("backend-lost", self.where, self.failed)
        return waiting.result()

    def close(self) -> None:
        """The box ends, and everything in it, when its socket does."""
        self.failed = self.failed or "the sandbox is closed"
        if self._transport is not None and not self._transport.is_closing():
            with contextlib.suppress(OSError):  # unlike a close, this also counts when a forked child has a copy
                self._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            self._transport.abort()
