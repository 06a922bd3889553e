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
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from temper.core.blame import FaultError
from temper.core.errors import MissingError, RefusedError
from temper.core.protocols import Enforcement, SandboxBackend
from temper.core.task import SandboxSpec
from temper.sandboxes import guest, local
from temper.sandboxes.box import all_of

OPEN_DOORS = {
    **local.OPEN_DOORS,
    "exhaust/every writable directory": "a container of its own has no quota on its disk",
    "exhaust/disk by bytes": "a container of its own has no quota on its disk",
    "exhaust/disk by inodes": "a container of its own has no quota on its disk",
    "look/kernel memory": "the engine masks only some of /proc",
    "look/the host's /sys": "the engine shows the host's /sys, read-only",
}


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
    argv = [*engine.run(f"temper-{os.getpid()}-try", engine.config.image, []), "filter"]
    guest.try_out(f"{engine.program} with {engine.config.image}", argv)
    return Containers(engine)


class Engine:
    """The engine's command line."""

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
        argv = [*self.run(name, self.config.image, options), "serve", f"{guest.DOOR}/{name}", *paths]
        with tempfile.TemporaryFile() as said:
            return guest.at_door(self.door / name, socket.SOCK_SEQPACKET, argv, said)

    async def call(self, *words: str) -> str:
        """A command of the engine. Raises FaultError."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(self.program, *words, stdout=pipe, stderr=pipe)
        out, err = await process.communicate()
        if process.returncode:
            raise FaultError("backend-lost", "docker", f"{words[0]}: {err.decode('utf-8', 'replace').strip()}")
        return out.decode().strip()

    def run(self, name: str, image: str, options: Sequence[str]) -> list[str]:
        argv = [self.program, "run", "--rm", f"--name={name}", "--network=none", "--hostname=sandbox", *options]
        argv += ["--security-opt=no-new-privileges", f"--volume={self.door}/helper:{guest.HELPER}:ro"]
        argv += [f"--volume={self.door}:{guest.DOOR}", *(f"--volume={path}:{path}:ro" for path in self.config.paths)]
        return [*argv, *self.config.options, f"--entrypoint={guest.HELPER}", image]


class Container(guest.Guest):
    """See `core.protocols.Snapshots`: what was written anywhere in the container is part of a snapshot.

    It keeps its name when a rollback gives it another container.
    """

    backend: Containers  # type: ignore[assignment]

    async def snapshot(self) -> str:
        state = f"temper-{secrets.token_hex(8)}"
        await self.backend.engine.call("commit", self.channel.where, state)
        self.backend.states.add(state)
        return state

    async def rollback(self, snapshot: str) -> None:
        fresh = await self._at(snapshot)
        await self.close()
        self.channel, self.gone = fresh.channel, fresh.gone

    async def fork(self, snapshot: str, n: int) -> list[Container]:
        return await all_of(self._at(snapshot) for _ in range(n))

    async def _at(self, state: str) -> Container:
        """Another one, as it was then."""
        if state not in self.backend.states:
            raise LookupError(f"no snapshot {state!r}")
        return await self.backend.open(replace(self.spec, files={}), state)  # type: ignore[return-value]


class Containers(guest.Backend):
    """One container a sandbox; its snapshots are images, removed when the backend closes."""

    name = "docker"
    limits: Mapping[str, Enforcement] = {
        **guest.LIMITS,
        "isolation": "advisory",  # the engine shows the host's /sys, and what of /proc it does not mask
        "disk": "none",
        "snapshots": "hard",
    }
    box = Container

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine, self.door = engine, engine.door
        self.states: set[str] = set()

    def command(self, name: str, spec: SandboxSpec, owner: str, state: str = "") -> list[str]:
        options = [f"--cap-add={cap}" for cap in ("CHOWN", "DAC_OVERRIDE", "SETUID", "SETGID")]  # to begin with
        options += ["--cap-drop=all", "--user=0:0"]
        return [*self.engine.run(name, state or self.engine.config.image, options), "guest", owner]

    async def close(self) -> None:
        await super().close()
        if self.states:
            await self.engine.call("rmi", "--force", *self.states)
