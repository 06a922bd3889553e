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
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.errors import ConfigError, MissingError, RefusedError
from temper.core.protocols import Enforcement
from temper.core.task import SandboxSpec
from temper.sandboxes import network, wire
from temper.sandboxes.box import GRACE, Local, refuse_weak, surroundings
from temper.sandboxes.images.records import Image
from temper.sandboxes.images.store import Store

_HELPER = Path(__file__).with_name("helper")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # of an image that has its own /usr
_STARTING = 16  # sandboxes being set up at once; more only wait for each other

Spawn = Callable[[Sequence[str]], tuple[subprocess.Popen[bytes], socket.socket]]  # from paths: process, control socket

# Doors that may stay open where the limit behind them is not hard (`temper check sandbox`), and why.
_UNCOUNTED = "without cgroups nobody counts memory that no process has mapped"
_SHARED = "the kernel counts it by host user, and a plain user is one"
OPEN_DOORS: dict[str, str] = {
    "exhaust/memfd": _UNCOUNTED,
    "exhaust/SysV shared memory": _UNCOUNTED,
    "exhaust/socket buffers": _UNCOUNTED,
    "exhaust/inotify": _SHARED,
    "exhaust/pipe pages": _SHARED,
    "exhaust/queued signals": _SHARED,
}
LIMITS = (
    "isolation", "network", "wall", "output", "file_size", "disk", "inodes", "pids", "open_files", "memory",
    "cpu_seconds", "snapshots", "sessions", "quotas",
)  # fmt: skip


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`paths` are files or directories of the host that sandboxes see, read-only, at the same place.

    Programs in their `bin` are found first, so that a virtual environment's Python, with its packages, is `python3`.
    """

    paths: tuple[str, ...] = ()


def create(config: Config | None = None) -> Backend:
    """Starts the helper. Raises MissingError where it was not built, RefusedError where the kernel forbids it."""
    try:
        store = Store()
    except (OSError, RuntimeError):  # no home, or one that cannot be written: then without images
        store = None
    return Backend(config or Config(), store)


def seccomp_filter() -> bytes:
    """The filter that commands run under, as `bwrap --seccomp` reads it."""
    return subprocess.run([str(helper()), "filter"], capture_output=True, check=True).stdout


class Backend:
    """A running launcher and its sandboxes."""

    def __init__(
        self, config: Config, store: Store | None = None, *, build: bool = False, spawn: Spawn | None = None
    ) -> None:
        """`store`: where images are; with `build`, their layers can be made. `spawn`: starts the launcher elsewhere."""
        prefix = sys.base_prefix
        layers = [] if store is None else ["--build" if build else "--layers", str(store.layers)]
        shown = _checked(config.paths)
        programs = [f"{path}/bin" for path in (*shown, prefix) if Path(path, "bin").is_dir()]
        self.path = ":".join((*programs, "/usr/local/bin", "/usr/bin", "/bin"))
        self.process, self._control = (spawn or _spawn)([*layers, prefix, *shown])
        self.hello = _greeting(self.process, self._control)
        self._control.setblocking(False)
        found = {"memory": self.hello.memory, "cpu_seconds": self.hello.cpu, "quotas": self.hello.privileged}
        self._capabilities: dict[str, Enforcement] = {
            limit: "hard" if found.get(limit, True) else "advisory" for limit in LIMITS
        }
        self._proxies: weakref.WeakSet[network.Proxy] = weakref.WeakSet()
        self._store = store
        self._images: dict[str, Image] = {}
        self._held = contextlib.ExitStack()
        self._gone: dict[int, asyncio.Future[None]] = {}
        self._starting = asyncio.Semaphore(_STARTING)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened = 0
        self._lost = ""

    def capabilities(self) -> Mapping[str, Enforcement]:
        return self._capabilities

    async def open(self, spec: SandboxSpec) -> Local:
        """A new sandbox with `spec.files` in it. Raises RefusedError, FaultError("backend-lost")."""
        if spec.network != "none":
            network.parse(spec.network)
        refuse_weak(spec, "local", self._capabilities)
        return await self.start(spec, self._image(spec.base))

    async def start(self, spec: SandboxSpec, image: Image | None, work: str = "") -> Local:
        """As `open`, for a spec that was admitted before, in that image.

        `work`: a directory beside the layers, for a backend that builds: what is written to the root stays in it.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._control.fileno(), self._listen)
        async with self._starting:
            return await self._start(spec, image, work)

    async def close(self) -> None:
        """Ends all sandboxes and the launcher."""
        with contextlib.suppress(OSError):  # unlike a close, this also counts when a forked child has a copy
            self._control.shutdown(socket.SHUT_RDWR)
        self._lose("the backend is closed")
        self._control.close()
        await asyncio.gather(*(proxy.close() for proxy in tuple(self._proxies)))
        self._held.close()
        try:
            await asyncio.wait_for(exited(self.process), GRACE)
        except TimeoutError:
            self.process.kill()
            self.process.wait()

    def _image(self, base: str) -> Image | None:
        """None for the host. The image stays in the store as long as this backend lives."""
        if base == "host":
            return None
        kind, _, name = base.partition(":")
        if kind != "image" or self._store is None:
            raise RefusedError(f"the local backend knows the bases 'host' and 'image:HASH', the task asks for {base!r}")
        if name not in self._images:
            self._images[name], file = self._store.hold(name)
            self._held.enter_context(file)
        return self._images[name]

    async def _start(self, spec: SandboxSpec, image: Image | None, work: str) -> Local:
        if self._lost:
            raise FaultError("backend-lost", "sandboxes.local", self._lost)
        loop = asyncio.get_running_loop()
        self._opened += 1
        number, name = self._opened, f"local-{os.getpid()}-{self._opened}"
        port = 0 if spec.network == "none" else network.PORT
        order = wire.pack_open(number, spec, port, image.stack(work) if image else "")
        channel, proxy = wire.Channel(name), None
        mine, theirs = socket.socketpair()
        try:
            try:
                with theirs:
                    socket.send_fds(self._control, [order], [theirs.fileno()])
            except OSError as error:
                raise FaultError("backend-lost", "sandboxes.local", f"the launcher does not answer: {error}") from error
            gone = self._gone[number] = loop.create_future()
            if port and (listening := await wire.socket_with_ready(mine, 30.0)) is not None:  # else it tells why
                proxy = network.Proxy(spec.network)
                self._proxies.add(proxy)
                await proxy.serve(listening)
            await loop.create_connection(lambda: channel, sock=mine)
            env = self._surroundings(spec, image)
            box = Local(name, spec, self._capabilities, env, channel, gone, self, image, proxy)
            await box.started()
            return box
        except BaseException:
            channel.close()
            mine.close()
            if proxy is not None:
                await proxy.close()
            raise

    def _surroundings(self, spec: SandboxSpec, image: Image | None) -> dict[str, str]:
        path = self.path if image is None or image.over_host else _PATH
        proxy = {} if spec.network == "none" else network.environment()
        return surroundings(spec, path, {**proxy, **(image.env if image else {})})

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
                self._lose(note)
                return
            gone = self._gone.pop(note.id, None)
            if gone and not gone.done():
                gone.set_result(None)

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        if self._loop is not None and self._control.fileno() >= 0:
            self._loop.remove_reader(self._control.fileno())
        for gone in self._gone.values():
            if not gone.done():
                gone.set_result(None)
        self._gone.clear()


def _checked(paths: Sequence[str]) -> list[str]:
    """Absolute paths to show. Raises ConfigError, MissingError."""
    found = [Path(path).absolute() for path in paths]
    for path in found:
        if not path.exists():
            raise MissingError(f"sandboxes local: paths names {path}, which is not there")
        if path.parts[1:2] in (("tmp",), ("sandbox",), ("dev",), ("proc",), ("sys",)):
            raise ConfigError(f"sandboxes local: /{path.parts[1]} is private in a sandbox: put {path} elsewhere")
    return [str(path) for path in found]


def helper() -> Path:
    """The program. Raises MissingError."""
    if not _HELPER.exists():
        raise MissingError(f"no sandbox helper at {_HELPER}: run `python native/build.py`, or install Temper again")
    return _HELPER


def _spawn(paths: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [str(helper()), "serve", str(theirs.fileno()), *paths],
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


async def exited(process: subprocess.Popen[bytes]) -> None:
    """Waits for its end without blocking the loop."""
    if process.poll() is None:
        loop = asyncio.get_running_loop()
        watched, ended = os.pidfd_open(process.pid), loop.create_future()
        loop.add_reader(watched, lambda: ended.done() or ended.set_result(None))
        try:
            await ended
        finally:
            loop.remove_reader(watched)
            os.close(watched)
        process.wait()
