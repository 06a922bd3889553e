"""Sandboxes inside walls that somebody else builds (bubblewrap, runsc, a container engine), one container each.

The launcher sets up namespaces and mounts as its command line says; the first process inside is our helper, which
serves the same requests as in `local`, with the same limits by process, evidence and seccomp filter. It can mount
nothing, so there are no snapshots here; and it can make no process that a program cannot signal, so there are no
sessions: one command could end another and have it count as our fault. A backend of this kind brings the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from temper.core.blame import FaultError
from temper.core.errors import MissingError, RefusedError
from temper.core.protocols import Enforcement
from temper.core.task import SandboxSpec
from temper.sandboxes import local, wire

HELPER = "/.temper-helper"  # inside
DOOR = "/run/temper"  # inside
UNUSED_IDS = 0x7080_0000  # of those that systemd leaves to nobody; `local`'s begin at 0x70000000
ETC = {
    "passwd": "root:x:0:0:root:/root:/usr/sbin/nologin\nuser:x:1000:1000:user:/sandbox:/bin/sh\n",
    "group": "root:x:0:\nuser:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
HIDDEN = ("interrupts", "cmdline", "timer_list", "keys", "key-users", "kallsyms", "kcore", "sysrq-trigger")  # of /proc
LIMITS: dict[str, Enforcement] = {  # by our helper, whatever the walls
    "isolation": "hard", "network": "hard", "wall": "hard", "output": "hard", "file_size": "hard", "pids": "hard",
    "open_files": "hard", "memory": "advisory", "cpu_seconds": "advisory", "quotas": "advisory", "sessions": "none",
}  # fmt: skip


class Walls(Protocol):
    """An outside launcher. `command` gives the host's command line of a container whose first process is `HELPER
    guest OWNER`, and whose standard input is the owner's socket, 0. A launcher that passes no descriptors has a `door`:
    a directory of the host, shown inside at `DOOR`, where OWNER is a socket to connect to. `state` is a snapshot."""

    capabilities: Mapping[str, Enforcement]

    @property
    def door(self) -> Path | None: ...

    def command(self, name: str, spec: SandboxSpec, owner: str, state: str = "") -> Sequence[str]: ...


class Backend:
    """See `core.protocols.SandboxBackend`."""

    def __init__(self, name: str, walls: Walls) -> None:
        self.name, self.walls = name, walls
        self.path = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"
        self._numbers = itertools.count()
        self._alive: set[local.Local] = set()
        self._unwanted: set[asyncio.Future[None]] = set()

    def capabilities(self) -> Mapping[str, Enforcement]:
        return self.walls.capabilities

    async def unserve(self, proxy: None) -> None:
        """No sandbox here has a network."""

    async def open(self, spec: SandboxSpec) -> Guest:
        return await self.start(spec)

    async def start(self, spec: SandboxSpec, state: str = "") -> Guest:
        """Empty but for `spec.files`, or as it was in a snapshot. When cancelled it starts all the same, and ends."""
        starting = asyncio.ensure_future(self._start(spec, state))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            ending = asyncio.ensure_future(_end(starting))
            self._unwanted.add(ending)
            ending.add_done_callback(self._unwanted.discard)
            raise

    async def _start(self, spec: SandboxSpec, state: str) -> Guest:
        refuse(self.name, spec, self.capabilities())
        name = f"{self.name}-{os.getpid()}-{next(self._numbers)}"
        process, control = await self._launch(name, spec, state)
        with contextlib.suppress(BrokenPipeError):  # it has ended: the channel says so
            control.sendall(wire.pack_open(0, spec))
        _, channel = await asyncio.get_running_loop().create_connection(lambda: wire.Channel(name), sock=control)
        gone = asyncio.ensure_future(_ended(process))
        box = local.Local(self, name, spec, None, None, channel, gone)  # type: ignore[arg-type]
        self._alive.add(box)
        gone.add_done_callback(lambda _: self._alive.discard(box))
        try:
            await channel.ready(30.0)
            if spec.files:
                await box.put_all(spec.files)
        except FaultError as error:
            await box.close()
            raise FaultError("backend-lost", name, f"{error.fault.detail}: {await _said(process)}") from error
        except OSError:
            await box.close()
            raise
        return Guest(box)

    async def _launch(
        self, name: str, spec: SandboxSpec, state: str
    ) -> tuple[asyncio.subprocess.Process, socket.socket]:
        """The launcher's process and our end of the socket to the helper inside."""
        if self.walls.door is None:
            mine, theirs = socket.socketpair()
            with theirs:
                return await _spawned(self.walls.command(name, spec, "0", state), theirs), mine
        with listening(self.walls.door / name, socket.SOCK_STREAM) as listener:
            process = await _spawned(
                self.walls.command(name, spec, f"{DOOR}/{name}", state), asyncio.subprocess.DEVNULL
            )
            ended = asyncio.ensure_future(process.wait())
            coming = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
            try:
                await asyncio.wait((coming, ended), timeout=60.0, return_when=asyncio.FIRST_COMPLETED)
                if coming.done():
                    return process, coming.result()[0]
            finally:
                coming.cancel()
            if not ended.done():
                process.terminate()
            raise FaultError("backend-lost", name, f"the container did not start: {await _said(process)}")

    async def close(self) -> None:
        await asyncio.gather(*self._unwanted)
        await asyncio.gather(*(box.close() for box in list(self._alive)))


class Guest:
    """One sandbox: what of `local.Local` works without mounts. See `core.protocols.Sandbox`."""

    def __init__(self, box: local.Local) -> None:
        self.use(box)

    def use(self, box: local.Local) -> None:
        self.local, self.id, self.capabilities = box, box.id, box.capabilities
        self.exec, self.put, self.get, self.close = box.exec, box.put, box.get, box.close

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{type(self).__name__} has no {name}: sessions, terminals, warm interpreters and quick snapshots need "
            "namespaces of our helper's making: use the local backend, or docker with a node"
        )


async def _spawned(argv: Sequence[str], stdin: Any) -> asyncio.subprocess.Process:
    null, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *argv, stdin=stdin, stdout=null, stderr=pipe, cwd="/", start_new_session=True
    )


async def _end(starting: asyncio.Future[Guest]) -> None:
    with contextlib.suppress(FaultError, OSError):
        await (await starting).close()


async def _ended(process: asyncio.subprocess.Process) -> None:
    await process.wait()


async def _said(process: asyncio.subprocess.Process) -> str:
    """What the launcher complained of."""
    assert process.stderr is not None
    return (await process.stderr.read()).decode("utf-8", "replace").strip()[-1000:]


def listening(path: Path, kind: socket.SocketKind) -> socket.socket:
    """A socket at `path` that whoever may enter the directory can connect to."""
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(str(path))
    path.chmod(0o777)
    listener.listen(1)
    listener.setblocking(False)
    return listener


def refuse(name: str, spec: SandboxSpec, offered: Mapping[str, Enforcement]) -> None:
    """Raises RefusedError for what this backend cannot give."""
    if spec.base != "host":
        raise RefusedError(f"{name} knows the base 'host' only, the task asks for {spec.base!r}")
    if spec.network != "none":
        raise RefusedError(f"{name} has no network, the task asks for {spec.network!r}")
    if weak := [f"{limit} is {offered.get(limit, 'none')}" for limit in spec.require if offered.get(limit) != "hard"]:
        raise RefusedError(f"the task requires hard limits; with {name} {', '.join(weak)}")


def system_paths() -> tuple[list[str], list[tuple[str, str]]]:
    """Of the host's system: paths to show read-only, and (target, link)s to make. The Python that runs Temper is among
    them, unless only root may enter the place where it is."""
    top = [Path(p) for p in ("/bin", "/sbin", "/lib", "/lib32", "/lib64") if Path(p).exists()]
    shown = ["/usr", "/etc/ld.so.cache", "/etc/alternatives", "/etc/ssl/certs"]
    shown = [path for path in shown if Path(path).exists()] + [str(path) for path in top if not path.is_symlink()]
    prefix = Path(sys.base_prefix)
    if not prefix.is_relative_to("/usr") and (os.geteuid() or all(p.stat().st_mode & 0o001 for p in prefix.parents)):
        shown.append(str(prefix))
    return shown, [(str(path.readlink()), str(path)) for path in top if path.is_symlink()]


def own_folder(walls: object) -> Path:
    """A directory that all can read, with our helper and the files of `ETC`; it goes when `walls` do."""
    for left in Path(tempfile.gettempdir()).glob("temper-walls-*-*"):  # by owners that were killed
        if not Path("/proc", left.name.split("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"temper-walls-{os.getpid()}-"))
    weakref.finalize(walls, shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    shutil.copy(local.helper(), folder / "helper")
    (folder / "helper").chmod(0o755)
    for name, text in ETC.items():
        (folder / name).write_text(text)
    return folder


def found(program: str, install: str) -> str:
    """Its path. Raises MissingError."""
    path = shutil.which(program)
    if path is None:
        raise MissingError(f"no {program} on PATH: {install}")
    return path
