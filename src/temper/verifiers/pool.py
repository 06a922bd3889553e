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
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import Any

import msgspec

from temper.core.blame import FaultError
from temper.core.errors import BackendError

_LOAD_SECONDS = 60.0  # for a worker to start, or to import what a check needs; not charged to the check
_LOSSES = 10  # deaths that were nobody's limit before a job is given up as worker-lost
_BATCH = 16  # jobs, and
_BATCH_BYTES = 32 << 10  # bytes, sent ahead to one worker; both fit any socket buffer, so that sending never blocks
_PATIENCE = 4  # limits that a check may take by the wall clock while it is kept from running
_STRANGERS = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT}


class LimitError(Exception):
    """A check passed its limit twice, the second time on a fresh worker. Whose fault that is, the gold answer tells."""


class Pool:
    """`async with Pool(workers=2) as pool: await pool.run("package.module:function", arg, seconds=2.0)`.

    memory: bytes of address space a worker. recycle: jobs after which a worker is replaced. cached: results kept.
    """

    def __init__(self, workers: int = 2, memory: int = 1 << 30, recycle: int = 5000, cached: int = 8192) -> None:
        self._slots, self._memory, self._recycle, self._cached = workers, memory, recycle, cached
        self._queue: deque[_Job] = deque()
        self._wake = threading.Condition()
        self._closed = False
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
        with self._wake:
            if self._closed or self._threads[0].ident is None:
                raise BackendError("the verifier pool is not open: use it inside `async with Pool(...)`")
            found = self._cache.get(key)
            if found is None:
                job = _Job(function, payload, seconds)
                self._queue.append(job)
                self._wake.notify()
        if found is not None:
            return msgspec.msgpack.decode(found)
        value = await asyncio.wrap_future(job.future)
        with self._wake:
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
        for thread in self._threads:
            thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        for worker in list(self._workers.values()):
            worker.process.kill()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        for job in self._queue:
            job.fail(BackendError("the verifier pool was closed"))

    def _serve(self, slot: int) -> None:
        """One thread, at most one worker. It spawns its worker: the kernel ends a child when this *thread* ends."""
        while batch := self._take():
            while batch:
                try:
                    self._work(self._workers.get(slot) or self._spawn(slot), batch)
                except _EndedError as error:
                    self._drop(slot)
                    batch = self._next(batch, error)
            if slot in self._workers and self._workers[slot].jobs >= self._recycle:
                self._drop(slot)
        self._drop(slot)

    def _take(self) -> deque[_Job]:
        """A fair share of the queue; empty when the pool is closed."""
        with self._wake:
            self._wake.wait_for(lambda: self._queue or self._closed)
            if self._closed:
                return deque()
            batch: deque[_Job] = deque()
            share, size = min(_BATCH, -(-len(self._queue) // self._slots)), 0
            while self._queue and len(batch) < share and (not batch or size + self._queue[0].size < _BATCH_BYTES):
                job = self._queue.popleft()
                if job.future.running() or job.future.set_running_or_notify_cancel():
                    batch.append(job)
                    size += job.size
        return batch or self._take()

    def _work(self, worker: _Worker, batch: deque[_Job]) -> None:
        """Answer all of `batch`, taking off what is decided. Raises _EndedError about the first that is left."""
        worker.send(b"".join(job.frame for job in batch))
        while batch:
            job = batch[0]
            kind, content = worker.answer(job)
            if kind == "limit":
                raise _EndedError(content, limit=True)
            batch.popleft()
            if kind == "value":
                job.future.set_result(content)
            else:
                job.fail(FaultError("verifier-crash", job.function, content))

    def _next(self, batch: deque[_Job], error: _EndedError) -> deque[_Job]:
        """After a death: the job that was being worked on goes first and alone, the others go back to the queue."""
        job = batch.popleft()
        with self._wake:
            self._queue.extendleft(reversed(batch))
            self._wake.notify_all()
        job.limits += error.limit
        job.losses += not error.limit
        if self._closed:
            job.fail(BackendError("the verifier pool was closed"))
        elif job.limits > 1:
            job.fail(LimitError(str(error)))
        elif job.losses > _LOSSES:
            job.fail(FaultError("worker-lost", "verifiers.pool", str(error)))
        else:
            return deque([job])
        return deque()

    def _spawn(self, slot: int) -> _Worker:
        worker = self._workers[slot] = _Worker(self._memory)
        worker.receive(_LOAD_SECONDS)
        return worker

    def _drop(self, slot: int) -> None:
        if worker := self._workers.pop(slot, None):
            worker.close()


class _EndedError(Exception):
    """A worker is gone or has to go. `limit`: because of the job it was working on."""

    def __init__(self, detail: str, limit: bool) -> None:
        super().__init__(detail)
        self.limit = limit


class _Job:
    def __init__(self, function: str, payload: bytes, seconds: float) -> None:
        self.function, self.seconds = function, seconds
        self.frame = len(payload).to_bytes(4, "little") + payload
        self.size = len(self.frame)
        self.future: Future[Any] = Future()
        self.limits = self.losses = 0

    def fail(self, error: Exception) -> None:
        with contextlib.suppress(InvalidStateError):  # cancelled while it waited
            self.future.set_exception(error)


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

    def send(self, frames: bytes) -> None:
        self._channel.settimeout(_LOAD_SECONDS)
        try:
            self._channel.sendall(frames)
        except OSError:  # dead, or alive and not reading
            raise self._ended() from None

    def answer(self, job: _Job) -> tuple[str, Any]:
        """(kind, content) of the worker's answer to `job`, the first that it has not answered. Raises _EndedError."""
        self.jobs += 1
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
        """A death that we did not order. Killed from outside, or before any job, is not the job's doing."""
        try:
            code = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return _EndedError("the worker closed its socket", limit=False)
        return _EndedError(f"the worker ended with {code}", limit=self.jobs > 0 and code not in _STRANGERS)

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
