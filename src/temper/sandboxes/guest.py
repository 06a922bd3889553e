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
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from temper.core.blame import FaultError
from temper.core.errors import MissingError, RefusedError
from temper.core.protocols import Enforcement
from temper.core.task import SandboxSpec
from temper.sandboxes import local, wire
from temper.sandboxes.box import Box, refuse_weak, surroundings

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
_PATH = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"
_START = 60.0  # seconds for a container to start


@dataclass(eq=False, repr=False)
class Guest(Box):
    """One sandbox: what of a local one works without mounts."""

    backend: Backend

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{type(self).__name__} has no {name}: sessions, terminals, warm interpreters and quick snapshots need "
            "namespaces of our helper's making: use the local backend, or docker with a node"
        )


class Backend(ABC):
    """See `core.protocols.SandboxBackend`. Each kind of walls is a subclass, with its limits and its command line."""

    name: str
    limits: Mapping[str, Enforcement]
    box: type[Guest] = Guest
    door: Path | None = None  # where no descriptors are passed: a directory of the host, shown inside at `DOOR`

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._alive: set[Guest] = set()
        self._unwanted: set[asyncio.Future[None]] = set()

    @abstractmethod
    def command(self, name: str, spec: SandboxSpec, owner: str, state: str = "") -> Sequence[str]:
        """The host's command line of a container whose first process is `HELPER guest OWNER`. `owner` is its standard
        input, 0, or else the path of a socket inside, to connect to. `state` is a snapshot."""

    def capabilities(self) -> Mapping[str, Enforcement]:
        return self.limits

    async def open(self, spec: SandboxSpec, state: str = "") -> Guest:
        """Empty but for `spec.files`, or as it was in a snapshot. When cancelled it starts all the same, and ends."""
        starting = asyncio.ensure_future(self._start(spec, state))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._unwanted.add(ending := asyncio.ensure_future(_end(starting)))
            ending.add_done_callback(self._unwanted.discard)
            raise

    async def close(self) -> None:
        await asyncio.gather(*self._unwanted)
        await asyncio.gather(*(box.close() for box in list(self._alive)))

    async def _start(self, spec: SandboxSpec, state: str) -> Guest:
        if spec.base != "host":
            raise RefusedError(f"{self.name} knows the base 'host' only, the task asks for {spec.base!r}")
        if spec.network != "none":
            raise RefusedError(f"{self.name} has no network, the task asks for {spec.network!r}")
        refuse_weak(spec, self.name, self.limits)
        name = f"{self.name}-{os.getpid()}-{next(self._numbers)}"
        with contextlib.ExitStack() as undo:
            said = undo.enter_context(tempfile.TemporaryFile())
            process, control = await self._launch(name, spec, state, said)
            undo.pop_all()
        with contextlib.suppress(BrokenPipeError):  # it has ended: the channel says so
            control.sendall(wire.pack_open(0, spec))
        channel = wire.Channel(name)
        await asyncio.get_running_loop().create_connection(lambda: channel, sock=control)
        gone = asyncio.ensure_future(_last_words(process, said))
        box = self.box(name, spec, self.limits, surroundings(spec, _PATH), channel, gone, self)
        self._alive.add(box)
        gone.add_done_callback(lambda _: self._alive.discard(box))
        try:
            await box.started()
        except FaultError as error:
            await box.close()
            raise FaultError("backend-lost", name, f"{error.fault.detail}: {gone.result()}") from error
        except OSError:
            await box.close()
            raise
        return box

    async def _launch(
        self, name: str, spec: SandboxSpec, state: str, said: IO[bytes]
    ) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """The launcher's process and our end of the socket to the helper inside."""
        if self.door is not None:
            argv = self.command(name, spec, f"{DOOR}/{name}", state)
            try:
                return await asyncio.to_thread(at_door, self.door / name, socket.SOCK_STREAM, argv, said)
            except RefusedError as error:
                raise FaultError("backend-lost", name, str(error)) from error
        mine, theirs = socket.socketpair()
        with theirs:
            return _spawned(self.command(name, spec, "0", state), theirs, said), mine


def at_door(
    door: Path, kind: socket.SocketKind, argv: Sequence[str], said: IO[bytes]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A launcher's process, and the socket by which the helper inside has come to `door`, which whoever may enter the
    directory can connect to. Raises RefusedError with what the launcher complained of."""
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(str(door))
        door.chmod(0o777)
        listener.listen(1)
        process = _spawned(argv, subprocess.DEVNULL, said)
        end = time.monotonic() + _START
        while time.monotonic() < end and process.poll() is None:
            if select.select([listener], [], [], 0.05)[0]:
                return process, listener.accept()[0]
        process.terminate()
        process.wait()
        raise RefusedError(f"the container did not start: {_complaint(said)}")


def try_out(what: str, argv: Sequence[str], seconds: float | None = None) -> None:
    """Raises RefusedError with what the command complains of."""
    try:
        tried = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise RefusedError(f"{what} does not work here: {error}") from error
    if tried.returncode:
        raise RefusedError(f"{what} does not work here: {tried.stderr.decode('utf-8', 'replace').strip()[-500:]}")


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


def own_folder(owner: object) -> Path:
    """A directory that all can read, with our helper and the files of `ETC`; it goes when its owner does."""
    for left in Path(tempfile.gettempdir()).glob("temper-walls-*-*"):  # by owners that were killed
        if not Path("/proc", left.name.split("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"temper-walls-{os.getpid()}-"))
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
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


def _spawned(argv: Sequence[str], stdin: Any, said: IO[bytes]) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    return subprocess.Popen(argv, stdin=stdin, stdout=null, stderr=said, cwd="/", start_new_session=True)


def _complaint(said: IO[bytes]) -> str:
    said.seek(0)
    return said.read().decode("utf-8", "replace").strip()[-1000:]


async def _last_words(process: subprocess.Popen[bytes], said: IO[bytes]) -> str:
    """What a launcher complained of, when it has ended."""
    with said:
        await local.exited(process)
        return _complaint(said)


async def _end(starting: asyncio.Future[Guest]) -> None:
    with contextlib.suppress(FaultError, RefusedError, OSError):
        await (await starting).close()
