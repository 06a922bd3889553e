"""Sandboxes in containers of Docker or Podman, by their command line.

Where the engine lets a container make user namespaces, one container is a *node*: our helper runs inside it and makes
the sandboxes, which start, roll back and fork in milliseconds as `local`'s do, over the image's /usr. Elsewhere each
sandbox is a container with our helper as its first process, and a snapshot is the engine's own commit.
The engine, the image and whoever may call the engine are trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import select
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from temper.core.blame import FaultError
from temper.core.errors import MissingError, RefusedError
from temper.core.protocols import Enforcement, SandboxBackend
from temper.core.task import SandboxSpec
from temper.sandboxes import guest, local

OPEN_DOORS = {
    **local.OPEN_DOORS,
    "exhaust/every writable directory": "a container of its own has no quota on its disk",
    "exhaust/disk by bytes": "a container of its own has no quota on its disk",
    "exhaust/disk by inodes": "a container of its own has no quota on its disk",
    "look/kernel memory": "the engine masks only some of /proc",
    "look/the host's /sys": "the engine shows the host's /sys, read-only",
}
_START = 60.0


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`paths` of the host are shown read-only in every container, at the same place."""

    image: str = "docker.io/library/python:3.12-slim"
    engine: str = ""  # docker or podman; "": whichever is on PATH
    options: tuple[str, ...] = ()  # more options for `run`, like --runtime=runsc
    paths: tuple[str, ...] = ()
    node: bool = True  # False: a container for each sandbox, also where user namespaces are allowed


def create(config: Config | None = None) -> SandboxBackend:
    """Raises MissingError without an engine, RefusedError when it cannot run the image."""
    engine = Engine(config or Config())
    if engine.config.node:
        with contextlib.suppress(RefusedError):
            return local.Backend(local.Config(), spawn=engine.spawn_node)
    engine.try_out()
    return Containers(engine)


class Engine:
    """The engine's command line. See `guest.Walls`."""

    capabilities: Mapping[str, Enforcement] = {
        **guest.LIMITS,
        "isolation": "advisory",  # the engine shows the host's /sys, and what of /proc it does not mask
        "disk": "none",
        "snapshots": "hard",
    }

    def __init__(self, config: Config) -> None:
        names = (config.engine,) if config.engine else ("podman", "docker")
        self.program = next((path for name in names if (path := shutil.which(name))), "")
        if not self.program:
            raise MissingError(f"no {' or '.join(names)} on PATH: apt-get install podman, or see docs.docker.com")
        self.config = config
        self.door = guest.own_folder(self)

    def spawn_node(self, paths: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """As `local` spawns its launcher. The container's own walls are opened for the sake of those inside it."""
        podman = Path(self.program).name == "podman"
        options = ["--security-opt=seccomp=unconfined", "--user=65534:65534", "--cap-drop=all", "--read-only"]
        options.append(f"--security-opt={'unmask=ALL' if podman else 'systempaths=unconfined'}")
        if Path("/sys/module/apparmor").exists():
            options.append("--security-opt=apparmor=unconfined")
        name = f"temper-{os.getpid()}-{secrets.token_hex(4)}"
        argv = [*self._run(name, self.config.image, options), "serve", f"{guest.DOOR}/{name}", *paths]
        with guest.listening(self.door / name, socket.SOCK_SEQPACKET) as listener, tempfile.TemporaryFile() as said:
            null = subprocess.DEVNULL
            process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=said, cwd="/", start_new_session=True)
            end = time.monotonic() + _START
            while time.monotonic() < end and process.poll() is None:
                if select.select([listener], [], [], 0.05)[0]:
                    return process, listener.accept()[0]
            process.terminate()
            process.wait()
            said.seek(0)
            raise RefusedError(f"no node: {said.read().decode('utf-8', 'replace').strip()[-500:]}")

    def try_out(self) -> None:
        """Raises RefusedError where a container of the image, with our helper in it, does not start."""
        argv = [*self._run(f"temper-{os.getpid()}-try", self.config.image, []), "filter"]
        tried = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True)
        if tried.returncode:
            why = tried.stderr.decode("utf-8", "replace").strip()[-500:]
            raise RefusedError(f"{self.program} cannot run {self.config.image}: {why}")

    def command(self, name: str, spec: SandboxSpec, owner: str, state: str = "") -> list[str]:
        options = [f"--cap-add={cap}" for cap in ("CHOWN", "DAC_OVERRIDE", "SETUID", "SETGID")]  # to begin with
        options += ["--cap-drop=all", "--user=0:0"]
        return [*self._run(name, state or self.config.image, options), "guest", owner]

    async def call(self, *words: str) -> str:
        """A command of the engine. Raises FaultError."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(self.program, *words, stdout=pipe, stderr=pipe)
        out, err = await process.communicate()
        if process.returncode:
            raise FaultError("backend-lost", "docker", f"{words[0]}: {err.decode('utf-8', 'replace').strip()}")
        return out.decode().strip()

    def _run(self, name: str, image: str, options: Sequence[str]) -> list[str]:
        argv = [self.program, "run", "--rm", f"--name={name}", "--network=none", "--hostname=sandbox", *options]
        argv += ["--security-opt=no-new-privileges", f"--volume={self.door}/helper:{guest.HELPER}:ro"]
        argv += [f"--volume={self.door}:{guest.DOOR}", *(f"--volume={path}:{path}:ro" for path in self.config.paths)]
        return [*argv, *self.config.options, f"--entrypoint={guest.HELPER}", image]


class Containers(guest.Backend):
    """One container a sandbox; its snapshots are images, removed when the backend closes."""

    def __init__(self, engine: Engine) -> None:
        super().__init__("docker", engine)
        self.engine = engine
        self.states: set[str] = set()

    async def open(self, spec: SandboxSpec) -> Container:
        return Container(self, spec, await self.start(spec))

    async def close(self) -> None:
        await super().close()
        if self.states:
            await self.engine.call("rmi", "--force", *self.states)


class Container(guest.Guest):
    """See `core.protocols.Snapshots`: what was written anywhere in the container is part of a snapshot."""

    def __init__(self, backend: Containers, spec: SandboxSpec, box: guest.Guest) -> None:
        super().__init__(box.local)
        self._backend = backend
        self._spec = replace(spec, files={})

    async def snapshot(self) -> str:
        state = f"temper-{secrets.token_hex(8)}"
        await self._backend.engine.call("commit", self.local.id, state)
        self._backend.states.add(state)
        return state

    async def rollback(self, snapshot: str) -> None:
        self._known(snapshot)
        await self.local.close()
        self.use((await self._backend.start(self._spec, snapshot)).local)

    async def fork(self, snapshot: str, n: int) -> list[Container]:
        self._known(snapshot)
        boxes = await asyncio.gather(*(self._backend.start(self._spec, snapshot) for _ in range(n)))
        return [Container(self._backend, self._spec, box) for box in boxes]

    def _known(self, state: str) -> None:
        if state not in self._backend.states:
            raise LookupError(f"no snapshot {state!r}")
