"""Python programs in fresh surroundings, without the price of a fresh sandbox: forks of a warm interpreter.

A zygote keeps a few sandboxes (lanes), each with a resident interpreter that has imported `preload` and never ran a
program (`resident.py`). A run is a fork of it in namespaces of its own, with an empty disk that holds `files` only,
under the spec's limits and the same seccomp filter, judged by the same evidence as `exec`. One lane runs one program at
a time, so what a sandbox counts is that program's; so does the resident's memory, as if it had imported the same. What
it can tell: its parent, outside of its pid namespace, has the number 0.

With `fresh` a run is a new interpreter instead, in the same surroundings: it shares not even memory with another. Where
our helper cannot make these (a container, bubblewrap, another machine) it is a new interpreter in a new sandbox: the
same answers, later. Not for programs that meet what earlier ones left: that is `exec`, or a session.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from temper.core.blame import FaultError
from temper.core.errors import BackendError, RefusedError
from temper.core.protocols import SandboxBackend
from temper.core.task import SandboxSpec
from temper.core.trace import Exit
from temper.sandboxes import wire
from temper.sandboxes.box import Local

# threads do not survive a fork
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_WARMING = 60.0  # seconds for an interpreter to import what it preloads
_ARGUMENT = 128 << 10  # bytes of one argument, linux/binfmts.h


class Zygote:
    """`path`: directories for `sys.path` that sandboxes of this backend see. `lanes`: how many runs go on at once.

    Raises RefusedError for a spec with a network.
    """

    def __init__(
        self,
        backend: SandboxBackend,
        preload: Sequence[str] = (),
        spec: SandboxSpec | None = None,
        *,
        path: Sequence[str] = (),
        fresh: bool = False,
        lanes: int = 0,
        python: str = "python3",
    ) -> None:
        self._backend = backend
        self._spec = spec or SandboxSpec()
        if self._spec.network != "none":
            raise RefusedError("programs of a zygote have no network but their own loopback; run them with exec")
        self._fresh = fresh
        self._path = ":".join(path)
        resident = Path(__file__).with_name("resident.py").read_text()
        self._resident = [python, "-I", "-c", resident, self._path, ",".join(preload)]
        self._interpreter = [python, "-s" if path else "-I", "-c"]
        self._try = f"import {', '.join(preload)}" if preload else ""
        self._apart = False  # a new sandbox for each run
        self._idle: list[Local] = []
        self._free = asyncio.Semaphore(lanes or max(2, os.cpu_count() or 1))
        self._closed = False

    async def run(
        self, source: str, *, stdin: bytes = b"", files: Mapping[str, bytes] | None = None, seconds: float = 10.0
    ) -> Exit:
        """The end of a program, which starts in /sandbox.

        Raises FaultError("backend-lost"), OSError for files that cannot be written, BackendError for a preload that
        fails, RefusedError where the backend has no such thing.
        """
        async with self._free:
            if self._closed:
                raise FaultError("backend-lost", "sandboxes.zygote", "the zygote is closed")
            lane = self._idle.pop() if self._idle else await self._open()
            content = {**self._spec.files, **(files or {})}
            if lane is None:
                return await self._run_apart(source, stdin, content, seconds)
            lost = False
            try:
                request = self._request(lane, source, stdin, content, seconds)
                return await lane.execute(request, seconds, "a program to end")
            except FaultError:
                lost = True
                raise
            finally:
                if lost or self._closed:
                    await lane.close()
                else:
                    self._idle.append(lane)

    async def close(self) -> None:
        """Ends what is idle; a run that goes on ends its lane when it ends."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(lane.close() for lane in idle))

    def _request(self, lane: Local, source: str, stdin: bytes, files: Mapping[str, bytes], seconds: float) -> bytes:
        if not self._fresh:
            program = source.encode("utf-8", "surrogateescape")
            flags = wire.FRESH | wire.FORKED
            return wire.pack_exec(["-"], {}, stdin, seconds, flags=flags, files=files, program=program)
        argv, env = self._command(source)
        return wire.pack_exec(argv, {**lane.env, **env}, stdin, seconds, flags=wire.FRESH, files=files)

    def _command(self, source: str) -> tuple[list[str], dict[str, str]]:
        python, options, given = self._interpreter
        return [python, options + "S" * self._fresh, given, source], {"PYTHONPATH": self._path}

    async def _run_apart(self, source: str, stdin: bytes, files: Mapping[str, bytes], seconds: float) -> Exit:
        argv, env = self._command(source)
        if len(os.fsencode(source)) >= _ARGUMENT:
            raise RefusedError(f"a program of {len(source)} characters is too long to be run in a sandbox of its own")
        box = await self._backend.open(structs.replace(self._spec, files=dict(files)))
        try:
            return await box.exec(argv, stdin=stdin, seconds=seconds, env=env)
        finally:
            await box.close()

    async def _open(self) -> Local | None:
        """One more lane. Its resident counts as a process, beyond those of the spec. None: each run has a sandbox."""
        if self._apart:
            return None
        if self._backend.capabilities().get("isolation", "none") == "none":
            raise RefusedError("a zygote needs a backend that isolates, like local")
        spec = structs.replace(self._spec, files={}, pids=self._spec.pids + (not self._fresh))
        lane: Any = await self._backend.open(spec)
        problem = ""
        try:
            if not hasattr(lane, "warm"):  # neither a Local nor a pool's: imports are tried
                argv, env = self._command(self._try)
                said = await lane.exec(argv, seconds=_WARMING, env=env)
                problem = "" if said.ok else f"{said.evidence} {said.text[-300:]}"
                self._apart = said.ok
            elif not self._fresh:
                problem = await lane.warm(self._resident, _ONE_THREAD, _WARMING)
            if problem:
                raise BackendError(f"the interpreter of a zygote did not get warm: {problem}")
        except BaseException:
            await lane.close()
            raise
        if not self._apart:
            return lane
        await lane.close()
        return None
