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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.errors import ConfigError, MissingError, RefusedError
from temper.core.protocols import Enforcement
from temper.core.task import SandboxSpec
from temper.sandboxes import network, wire
from temper.sandboxes.box import GRACE, Local
from temper.sandboxes.images.records import Image
from temper.sandboxes.images.store import Store

_HELPER = Path(__file__).with_name("helper")
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


def probe() -> wire.Note:
    """What the helper finds on this machine, without a backend. Raises as `create` does."""
    process, control = _spawn([])
    hello = _greeting(process, control)
    control.close()
    process.wait(GRACE)
    return hello


def seccomp_filter() -> bytes:
    """The filter that commands run under, as `bwrap --seccomp` reads it."""
    return subprocess.run([str(helper()), "filter"], capture_output=True, check=True).stdout


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
        "open_files": "hard",
        "memory": "hard" if hello.memory else "advisory",
        "cpu_seconds": "hard" if hello.cpu else "advisory",
        "snapshots": "hard",
        "sessions": "hard",
        "quotas": "hard" if hello.privileged else "advisory",
    }


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
        self._proxies: set[network.Proxy] = set()
        self._store = store
        self._images: dict[str, Image] = {}
        self._held = contextlib.ExitStack()
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
        return await self.start(spec, self._image(spec.base))

    async def start(self, spec: SandboxSpec, image: Image | None, work: str = "") -> Local:
        """As `open`, for a spec that was admitted before, in that image.

        `work`: a directory beside the layers, for a backend that builds: what is written to the root stays in it.
        """
        self._attach()
        async with self._starting:
            return await self._start(spec, image, work)

    async def close(self) -> None:
        """Ends all sandboxes and the launcher."""
        if self._loop is not None and self._control.fileno() >= 0:
            self._loop.remove_reader(self._control.fileno())
        with contextlib.suppress(OSError):  # unlike a close, this also counts when a forked child has a copy
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        self._lost = self._lost or "the backend is closed"
        self._release()
        await asyncio.gather(*(self.unserve(proxy) for proxy in tuple(self._proxies)))
        self._held.close()
        await _exited(self.process)

    def _check(self, spec: SandboxSpec) -> None:
        if spec.network != "none":
            network.parse(spec.network)
        offered = self.capabilities()
        weak = [f"{name} is {offered.get(name, 'none')}" for name in spec.require if offered.get(name) != "hard"]
        if weak:
            raise RefusedError(f"the task requires hard limits; here {', '.join(weak)}: see `temper doctor`")

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

    def _attach(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._control.fileno(), self._listen)

    async def _start(self, spec: SandboxSpec, image: Image | None, work: str) -> Local:
        if self._lost:
            raise FaultError("backend-lost", "sandboxes.local", self._lost)
        loop = asyncio.get_running_loop()
        self._opened += 1
        number = self._opened
        port = 0 if spec.network == "none" else network.PORT
        order = wire.pack_open(number, spec, port, image.stack(work) if image else "")
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        gone = self._gone[number] = loop.create_future()
        with theirs:
            try:
                socket.send_fds(self._control, [order], [theirs.fileno()])
            except OSError as error:
                mine.close()
                raise FaultError("backend-lost", "sandboxes.local", f"the launcher does not answer: {error}") from error
        name = f"local-{os.getpid()}-{number}"
        proxy = None
        try:
            if spec.network != "none":
                proxy = await self._serve(mine, spec.network)
            _, channel = await loop.create_connection(lambda: wire.Channel(name), sock=mine)
        except BaseException:
            mine.close()
            await self.unserve(proxy)
            raise
        box = Local(self, name, spec, image, proxy, channel, gone)
        try:
            await channel.ready(30.0)
            if spec.files:
                await box.put_all(spec.files)
        except BaseException:
            channel.close()
            await self.unserve(proxy)
            raise
        return box

    async def _serve(self, control: socket.socket, allowed: tuple[str, ...]) -> network.Proxy | None:
        """The proxy of a box that is about to be ready; None for one that fails, which tells why by itself."""
        listening = await wire.socket_with_ready(control, 30.0)
        if listening is None:
            return None
        proxy = network.Proxy(allowed)
        await proxy.serve(listening)
        self._proxies.add(proxy)
        return proxy

    async def unserve(self, proxy: network.Proxy | None) -> None:
        if proxy is not None:
            self._proxies.discard(proxy)
            await proxy.close()

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


async def _exited(process: subprocess.Popen[bytes]) -> None:
    """Waits for the process without blocking the loop; kills it after a while."""
    if process.poll() is not None:
        return
    loop = asyncio.get_running_loop()
    watched = os.pidfd_open(process.pid)
    ended = loop.create_future()
    loop.add_reader(watched, lambda: ended.done() or ended.set_result(None))
    try:
        done, _ = await asyncio.wait((ended,), timeout=GRACE)
        if not done:
            process.kill()
    finally:
        loop.remove_reader(watched)
        os.close(watched)
    process.wait()
