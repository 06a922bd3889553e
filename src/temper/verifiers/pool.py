"""Killable worker processes for everything that looks at model output: usable from any thread and event loop.

Contract: a check that hangs or explodes costs its own limit and is killed; a worker that somebody else killed costs a
retry and never a verdict. A job that passes its limit is tried once more on a fresh worker. Results are cached by
content. Workers are spawned (never forked from a process with torch's threads) and die with their owner.

What this is not: a sandbox. Workers run *our* checks over hostile text; hostile programs go to `temper.sandboxes`.

    run ──▶ queue ──▶ one thread a worker ──▶ socket ──▶ temper.verifiers.worker
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import msgspec

from temper.core.blame import FaultError
from temper.core.errors import BackendError

_LOAD_SECONDS = 60.0  # for a worker to start, or to import what a check needs; not charged to the check
_PATIENCE = 4  # limits by the wall clock that a check may take while it is kept from running
_LOSSES = 10  # deaths that were nobody's limit before a job is given up as worker-lost
_EXPLOSIONS = {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL}


class LimitError(Exception):
    """A check passed its limit twice, the second time on a fresh worker. Whose fault that is, the gold answer tells."""


class Pool:
    """`async with Pool(workers=2) as pool: await pool.run("package.module:function", arg, seconds=2.0)`.

    memory: bytes of address space a worker. recycle: jobs after which a worker is replaced. cached: results kept.
    """

    def __init__(self, workers: int = 2, memory: int = 1 << 30, recycle: int = 5000, cached: int = 8192) -> None:
        self._memory, self._recycle, self._cached = memory, recycle, cached
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._open = False
        self._lock = threading.Lock()
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._workers: dict[int, _Worker] = {}
        self._threads = [threading.Thread(target=self._serve, args=(n,), daemon=True) for n in range(workers)]

    @property
    def pids(self) -> list[int]:
        """Processes alive now."""
        return [worker.process.pid for worker in list(self._workers.values())]

    async def run(self, function: str, *args: Any, seconds: float = 2.0) -> Any:
        """Call `function(*args)` in a worker. Arguments and result are msgpack data.

        Raises LimitError (twice past `seconds`, the memory limit or the recursion limit), FaultError("verifier-crash")
        when the function raised, FaultError("worker-lost") when workers kept being killed or got no CPU.
        """
        payload = msgspec.msgpack.encode((function, args))
        key = hashlib.blake2b(payload, digest_size=16).digest()
        if (found := self._cache.get(key)) is not None:
            return msgspec.msgpack.decode(found)
        job = _Job(function, len(payload).to_bytes(4, "little") + payload, seconds, Future())
        with self._lock:  # no job behind the end marks that closing puts into the queue
            if not self._open:
                raise BackendError("the verifier pool is not open: use it inside `async with Pool(...)`")
            self._queue.put(job)
        value = await asyncio.wrap_future(job.future)
        with self._lock:
            self._cache[key] = msgspec.msgpack.encode(value)
            if len(self._cache) > self._cached:
                self._cache.popitem(last=False)
        return value

    async def judge(
        self, function: str, answer: Sequence[Any], gold: Sequence[Any], right: Callable[[Any], bool], seconds: float
    ) -> Any:
        """`run` on the answer; where that passes its limit, the gold answer decides whose fault it is."""
        try:
            return await self.run(function, *answer, seconds=seconds)
        except LimitError as error:
            try:
                passed = right(await self.run(function, *gold, seconds=seconds))
            except LimitError:
                raise FaultError("verifier-limit", function, f"the gold answer, too: {error}") from None
            raise FaultError("answer-exceeds-verifier" if passed else "gold-fails", function, str(error)) from None

    async def __aenter__(self) -> Pool:
        self._open = True
        for thread in self._threads:
            thread.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        with self._lock:
            self._open = False
            for _ in self._threads:
                self._queue.put(None)
        for worker in list(self._workers.values()):
            worker.process.kill()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _serve(self, slot: int) -> None:
        """One thread, at most one worker. It spawns its worker: the kernel ends a child when this *thread* ends."""
        while (job := self._queue.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                job.future.set_result(self._decide(slot, job))
            except Exception as error:  # the boundary between this thread and whoever awaits
                job.future.set_exception(error)
            if slot in self._workers and self._workers[slot].jobs >= self._recycle:
                self._drop(slot)
        self._drop(slot)

    def _decide(self, slot: int, job: _Job) -> Any:
        """The result, over as many workers as that takes. Raises what `run` raises."""
        limits = losses = 0
        while self._open:
            try:
                kind, content = self._worker(slot).answer(job)
                if kind == "limit":
                    raise _EndedError(content, limit=True)
            except _EndedError as error:
                self._drop(slot)
                limits, losses = limits + error.limit, losses + (not error.limit)
                if limits > 1:
                    raise LimitError(str(error)) from None
                if losses > _LOSSES:
                    raise FaultError("worker-lost", "verifiers.pool", str(error)) from None
                continue
            if kind == "crash":
                raise FaultError("verifier-crash", job.function, content)
            return content
        raise BackendError("the verifier pool was closed")

    def _worker(self, slot: int) -> _Worker:
        if slot not in self._workers:
            try:
                self._workers[slot] = _Worker(self._memory)
            except OSError as error:
                raise _EndedError(f"no worker could be started: {error}", limit=False) from None
            self._workers[slot].receive(_LOAD_SECONDS)
        return self._workers[slot]

    def _drop(self, slot: int) -> None:
        if worker := self._workers.pop(slot, None):
            worker.close()


class _Job(NamedTuple):
    function: str
    frame: bytes
    seconds: float
    future: Future[Any]


class _EndedError(Exception):
    """A worker is gone or has to go. `limit`: because of the job it was working on."""

    def __init__(self, detail: str, limit: bool) -> None:
        super().__init__(detail)
        self.limit = limit


class _Worker:
    """The owner's side of one process. All methods are called by one thread."""

    def __init__(self, memory: int) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            argv = [str(theirs.fileno()), str(os.getpid()), str(memory)]
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "temper.verifiers.worker", *argv],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
            )
        self._buffer = bytearray()
        self._known: set[str] = set()
        self._clock = (~self.process.pid << 3) | 2  # the kernel's MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
        self.jobs = 0

    def answer(self, job: _Job) -> tuple[str, Any]:
        """(kind, content) of the worker's answer. Raises _EndedError when it passed its limit, or died."""
        self.jobs += 1
        self._send(job.frame)
        if job.function not in self._known:
            kind, content = self.receive(_LOAD_SECONDS)
            if kind != "ready":
                return kind, content
            self._known.add(job.function)
        began = self._cpu()
        for _ in range(_PATIENCE):
            try:
                return self._read(job.seconds)
            except TimeoutError:
                spent = self._cpu() - began
                if spent > job.seconds / 2 or self._asleep():
                    raise _EndedError(f"{job.function} used {spent:.1f} s of CPU in {job.seconds:g} s", True) from None
        raise _EndedError(f"{job.function} was starved: {spent:.1f} s of CPU in {_PATIENCE * job.seconds:g} s", False)

    def receive(self, seconds: float) -> tuple[str, Any]:
        """A frame that has nothing to do with the job. Raises _EndedError without blame."""
        try:
            return self._read(seconds)
        except TimeoutError:
            raise _EndedError(f"the worker was not ready after {seconds:g} s", limit=False) from None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._channel.close()

    def _send(self, frame: bytes) -> None:
        self._channel.settimeout(_LOAD_SECONDS)
        try:
            self._channel.sendall(frame)
        except OSError:  # dead, or alive and not reading
            raise self._ended() from None

    def _read(self, seconds: float) -> tuple[str, Any]:
        deadline = time.monotonic() + seconds
        while len(self._buffer) < 4 or len(self._buffer) < (end := 4 + int.from_bytes(self._buffer[:4], "little")):
            self._channel.settimeout(max(deadline - time.monotonic(), 1e-3))
            try:
                data = self._channel.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                raise self._ended()
            self._buffer += data
        kind, content = msgspec.msgpack.decode(self._buffer[4:end])
        del self._buffer[:end]
        return kind, content

    def _ended(self) -> _EndedError:
        """A death that we did not order: the job's doing if it exploded, not if somebody killed it or we have a bug."""
        try:
            code = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return _EndedError("the worker closed its socket", limit=False)
        return _EndedError(f"the worker ended with {code}", limit=code in _EXPLOSIONS)

    def _cpu(self) -> float:
        with contextlib.suppress(OSError):  # just died: the next read says so
            return time.clock_gettime(self._clock)
        return 0.0

    def _asleep(self) -> bool:
        """Waiting for something that will not come, and not merely for its turn on the CPU."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
        return False


def _environment() -> dict[str, str]:
    """Nothing of ours but the way to the code; a fixed hash seed, so that sets print and compare alike everywhere."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "PATH": os.defpath}
