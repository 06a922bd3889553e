"""Sandboxes on this machine, through the native helper: no daemon, no root needed, about two milliseconds each.

One helper process per backend makes the sandboxes (`native/launcher.c`). A command sees the host's /usr and the
Python that runs Temper, read-only; a private /sandbox (its working directory), /tmp and /dev/shm of `spec.disk` bytes
together, in memory; no network; nothing of the host's processes. All processes of a command end with it.

The kernel is shared: this holds back code that a model wrote, not a tenant with an unpatched kernel exploit.
A backend belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.errors import ConfigError, MissingError, RefusedError
from temper.core.protocols import Enforcement
from temper.core.task import SandboxSpec
from temper.core.trace import Exit
from temper.sandboxes import evidence, wire

_HELPER = Path(__file__).with_name("helper")
_STARTING = 16  # sandboxes being set up at once; more only wait for each other
_GRACE = 20.0  # seconds beyond a command's own limit until the helper itself counts as lost


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`paths` are files or directories of the host that sandboxes see, read-only, at the same place."""

    paths: tuple[str, ...] = ()


def create(config: Config | None = None) -> Backend:
    """Starts the helper. Raises MissingError where it was not built, RefusedError where the kernel forbids it."""
    return Backend(config or Config())


def probe() -> wire.Note:
    """What the helper finds on this machine, without a backend. Raises as `create` does."""
    process, control = _spawn([])
    hello = _greeting(process, control)
    control.close()
    process.wait(_GRACE)
    return hello


def seccomp_filter() -> bytes:
    """The filter that commands run under, as `bwrap --seccomp` reads it."""
    return subprocess.run([str(_helper()), "filter"], capture_output=True, check=True).stdout


def capabilities_of(hello: wire.Note) -> dict[str, Enforcement]:
    """How each limit of a SandboxSpec holds here."""
    return {
        "isolation": "hard",
        "network": "hard",
        "wall": "hard",
        "output": "hard",
        "file_size": "hard",
        "disk": "hard",
        "inodes": "hard",
        "pids": "hard",
        "memory": "hard" if hello.memory else "advisory",
        "cpu_seconds": "hard" if hello.cpu else "advisory",
    }


class Backend:
    """A running launcher and its sandboxes."""

    def __init__(self, config: Config) -> None:
        prefix = sys.base_prefix
        self._path = f"{prefix}/bin:/usr/local/bin:/usr/bin:/bin"
        self.process, self._control = _spawn([prefix, *_checked(config.paths)])
        self.hello = _greeting(self.process, self._control)
        self._control.setblocking(False)
        self._gone: dict[int, asyncio.Future[None]] = {}
        self._starting = asyncio.Semaphore(_STARTING)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened = 0
        self._lost = ""

    def capabilities(self) -> Mapping[str, Enforcement]:
        return capabilities_of(self.hello)

    async def open(self, spec: SandboxSpec) -> Local:
        """A new sandbox with `spec.files` in it. Raises RefusedError, FaultError("backend-lost")."""
        self._check(spec)
        self._attach()
        async with self._starting:
            return await self._start(spec)

    async def close(self) -> None:
        """Ends all sandboxes and the launcher."""
        if self._loop is not None and self._control.fileno() >= 0:
            self._loop.remove_reader(self._control.fileno())
        with contextlib.suppress(OSError):  # unlike a close, this also counts when a forked child has a copy
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        self._lost = self._lost or "the backend is closed"
        self._release()
        await _exited(self.process)

    def _check(self, spec: SandboxSpec) -> None:
        if spec.base != "host":
            raise RefusedError(f"the local backend knows the base 'host' only, the task asks for {spec.base!r}")
        offered = self.capabilities()
        weak = [f"{name} is {offered.get(name, 'none')}" for name in spec.require if offered.get(name) != "hard"]
        if weak:
            raise RefusedError(f"the task requires hard limits; here {', '.join(weak)}: see `temper doctor`")

    def _attach(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._control.fileno(), self._listen)

    async def _start(self, spec: SandboxSpec) -> Local:
        if self._lost:
            raise FaultError("backend-lost", "sandboxes.local", self._lost)
        loop = asyncio.get_running_loop()
        self._opened += 1
        number = self._opened
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        gone = self._gone[number] = loop.create_future()
        with theirs:
            try:
                socket.send_fds(self._control, [wire.pack_open(number, spec)], [theirs.fileno()])
            except OSError as error:
                mine.close()
                raise FaultError("backend-lost", "sandboxes.local", f"the launcher does not answer: {error}") from error
        name = f"local-{os.getpid()}-{number}"
        _, channel = await loop.create_connection(lambda: wire.Channel(name), sock=mine)
        box = Local(name, self.capabilities(), spec, channel, gone, self._path)
        try:
            await channel.ready(30.0)
            if spec.files:
                await box.put_all(spec.files)
        except BaseException:
            channel.close()
            raise
        return box

    def _listen(self) -> None:
        """The launcher says which boxes are no more, or has gone itself."""
        while True:
            try:
                packet = self._control.recv(4096)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            note = wire.unpack_note(packet) if packet else "the launcher has gone"
            if isinstance(note, str):
                self._lost = self._lost or note
                assert self._loop is not None
                self._loop.remove_reader(self._control.fileno())
                self._release()
                return
            gone = self._gone.pop(note.id, None)
            if gone and not gone.done():
                gone.set_result(None)

    def _release(self) -> None:
        for gone in self._gone.values():
            if not gone.done():
                gone.set_result(None)
        self._gone.clear()


class Local:
    """One sandbox. See `core.protocols.Sandbox`; commands run one after another."""

    def __init__(
        self,
        name: str,
        capabilities: Mapping[str, Enforcement],
        spec: SandboxSpec,
        channel: wire.Channel,
        gone: asyncio.Future[None],
        path: str,
    ) -> None:
        self.id = name
        self.capabilities = capabilities
        self._spec = spec
        self._channel = channel
        self._gone = gone
        home = {"HOME": "/sandbox", "USER": "user", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "PATH": path}
        self._env = {**home, "PYTHONDONTWRITEBYTECODE": "1", **spec.env}

    async def exec(
        self, argv: Sequence[str], *, stdin: bytes = b"", seconds: float = 10.0, env: Mapping[str, str] | None = None
    ) -> Exit:
        request = wire.pack_exec(argv, {**self._env, **(env or {})}, stdin, seconds)
        reply = await self._channel.call(wire.EXEC, request, seconds + _GRACE, f"{argv[0]!r} to end")
        found = evidence.exit_of(wire.unpack_ending(reply), self._spec, seconds)
        if found.cause == "backend-lost":
            raise FaultError("backend-lost", self.id, found.evidence)
        return found

    async def put(self, path: str, content: bytes) -> None:
        """Replaces a file, with the directories above it. Raises PermissionError for a way out, OSError when full."""
        await self.put_all({path: content})

    async def put_all(self, files: Mapping[str, bytes]) -> None:
        reply = await self._channel.call(wire.PUT, wire.pack_put(files), _GRACE, "files to be written")
        _raise(reply, os.fsdecode(reply[4:]), {errno.ELOOP: errno.EACCES, errno.EXDEV: errno.EACCES})

    async def get(self, path: str) -> bytes:
        reply = await self._channel.call(wire.GET, os.fsencode(path), _GRACE, f"{path!r} to be read")
        _raise(reply, path, dict.fromkeys((errno.ELOOP, errno.EXDEV, errno.ENOTDIR, errno.ENXIO), errno.ENOENT))
        return reply[4:]

    async def close(self) -> None:
        """Everything in the sandbox is dead, and its mounts and cgroup are gone, when this returns."""
        self._channel.close()
        done, _ = await asyncio.wait((self._gone,), timeout=_GRACE)
        if not done:
            raise FaultError("backend-lost", self.id, f"waited {_GRACE:.0f} s for the sandbox to end")


def _raise(reply: bytes, path: str, as_if: Mapping[int, int]) -> None:
    number = int.from_bytes(reply[:4], sys.byteorder)
    if number:
        raise OSError(as_if.get(number, number), os.strerror(number), path)


def _checked(paths: Sequence[str]) -> list[str]:
    """Absolute paths to show. Raises ConfigError, MissingError."""
    found = [Path(path).absolute() for path in paths]
    for path in found:
        if not path.exists():
            raise MissingError(f"sandboxes local: paths names {path}, which is not there")
        if path.parts[1:2] in (("tmp",), ("sandbox",), ("dev",), ("proc",), ("sys",)):
            raise ConfigError(f"sandboxes local: /{path.parts[1]} is private in a sandbox: put {path} elsewhere")
    return [str(path) for path in found]


def _helper() -> Path:
    if not _HELPER.exists():
        raise MissingError(f"no sandbox helper at {_HELPER}: run `python native/build.py`, or install Temper again")
    return _HELPER


def _spawn(paths: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [str(_helper()), "serve", str(theirs.fileno()), *paths],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # else sandboxes would hold the owner's streams open
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the owner
        )
    return process, mine


def _greeting(process: subprocess.Popen[bytes], control: socket.socket) -> wire.Note:
    control.settimeout(20.0)
    try:
        packet = control.recv(4096)
    except TimeoutError:
        packet = b""
    note = wire.unpack_note(packet) if packet else "the helper gave no answer"
    if isinstance(note, str):
        control.close()
        try:
            process.wait(5.0)  # it cleans up
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise RefusedError(f"this machine does not let us make sandboxes ({note}): see `temper doctor`")
    return note


async def _exited(process: subprocess.Popen[bytes]) -> None:
    """Waits for the process without blocking the loop; kills it after a while."""
    if process.poll() is not None:
        return
    loop = asyncio.get_running_loop()
    watched = os.pidfd_open(process.pid)
    ended = loop.create_future()
    loop.add_reader(watched, lambda: ended.done() or ended.set_result(None))
    try:
        done, _ = await asyncio.wait((ended,), timeout=_GRACE)
        if not done:
            process.kill()
    finally:
        loop.remove_reader(watched)
        os.close(watched)
    process.wait()
