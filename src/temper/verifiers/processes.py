"""The owner's side of the pool's processes: the template that workers are forked from, and one worker.

Nothing here decides about a verdict: an `EndedError` says that a worker is gone or has to go, and whether its job is
the reason.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

_LOAD_SECONDS = 60.0  # for a worker to start, or to import what a check needs; not charged to the check
_PATIENCE = 12  # limits by the wall clock that a check may take while it is kept from running
_BATCH_BYTES = 1 << 16  # of the jobs behind the first one: they fit into the socket, so that sending never waits
_GRACE_SECONDS = 0.03  # after which a check no longer keeps those behind it
_EXPLOSIONS = {-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL}


@dataclass(eq=False, slots=True)
class Job:
    function: str
    frame: bytes
    seconds: float
    future: Future[Any] = field(default_factory=Future)
    limits: int = 0
    losses: int = 0

    def settle(self, value: Any = None, error: Exception | None = None) -> None:
        with contextlib.suppress(InvalidStateError):  # cancelled, or another worker was first
            if error is None:
                self.future.set_result(value)
            else:
                self.future.set_exception(error)


class EndedError(Exception):
    """A worker is gone or has to go. `limit`: because of the job it was working on."""

    def __init__(self, detail: str, limit: bool) -> None:
        super().__init__(detail)
        self.limit = limit


class Template:
    """The process that workers are forked from, started when one is needed. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted: list[str] = []  # functions that were used, for a template that has to be started again

    def fork(self, memory: int) -> tuple[int, set[str], socket.socket]:
        """A new worker: its pid, the functions that it knows already, our end of its socket. Raises EndedError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid, known = self._ask("fork", memory, theirs.fileno())
            except EndedError:
                ours.close()
                raise
        return pid, set(known), ours

    def wait(self, pid: int) -> int:
        """The exit code of a worker that has ended or was killed. Raises EndedError."""
        return self._ask("wait", pid)

    def load(self, function: str) -> None:
        """Let later workers know the function from their start."""
        with self._lock:
            if function not in self._wanted:
                self._wanted.append(function)
                with contextlib.suppress(OSError):  # if it is gone, the next one is told
                    self._control.send(msgspec.msgpack.encode(("load", function)))

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, what: str, argument: int, *descriptors: int) -> Any:
        with self._lock:
            try:
                if self._process is None:
                    self._start()
                socket.send_fds(self._control, [msgspec.msgpack.encode((what, argument))], descriptors)
                if not (answer := self._control.recv(1 << 16)):
                    raise ConnectionError("it closed its socket")
                return msgspec.msgpack.decode(answer)
            except OSError as error:
                self._end()
                raise EndedError(f"the template of the workers was lost: {error}", limit=False) from None

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._control.close()
            self._process = None

    def _start(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_LOAD_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "temper.verifiers.worker", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_environment(),
            )
        for function in self._wanted:
            self._control.send(msgspec.msgpack.encode(("load", function)))


class Worker:
    """The owner's side of one worker. All methods but `kill` are called by one thread. Raises EndedError."""

    def __init__(self, template: Template, memory: int) -> None:
        self._template = template
        self.pid, self._known, self._channel = template.fork(memory)
        self._buffer = bytearray()
        self._clock = (~self.pid << 3) | 2  # the kernel's MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED)
        self.jobs = 0
        self.reaped = False  # after that its pid may be anybody's

    def answer(self, job: Job, late: Callable[[], None]) -> tuple[str, Any, float]:
        """(kind, content, seconds of CPU) of the next answer; calls `late` when it is not there soon.

        Raises EndedError when the worker passed the job's limit, or died.
        """
        if job.function not in self._known:
            try:
                kind, content = self._read(_LOAD_SECONDS)
            except TimeoutError:
                raise EndedError(f"the worker was not ready after {_LOAD_SECONDS:g} s", limit=False) from None
            if kind != "ready":
                return kind, content, 0.0
            self._known.add(job.function)
            self._template.load(job.function)
        began, spent = self._cpu(), 0.0
        soon = min(_GRACE_SECONDS, job.seconds)
        for n, seconds in enumerate((soon, job.seconds - soon, *[job.seconds] * (_PATIENCE - 1))):
            try:
                return *self._read(seconds), self._cpu() - began
            except TimeoutError:
                if n == 0:
                    late()
                    continue
                spent = self._cpu() - began
                if spent > job.seconds / 2 or self._asleep():
                    raise EndedError(f"{job.function} used {spent:.1f} s of CPU in {job.seconds:g} s", True) from None
        raise EndedError(f"{job.function} was starved: {spent:.1f} s of CPU in {_PATIENCE * job.seconds:g} s", False)

    def kill(self) -> None:
        if not self.reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        self._channel.close()
        with contextlib.suppress(EndedError):
            self._reap()

    def send(self, jobs: Iterable[Job]) -> int:
        """Send the first job and those behind it that the socket holds; gives how many that were."""
        frames, room = [], _BATCH_BYTES
        for job in jobs:
            room -= len(job.frame) if frames else 0
            if room < 0:
                break
            frames.append(job.frame)
        self.jobs += len(frames)
        self._channel.settimeout(_LOAD_SECONDS)
        try:
            self._channel.sendall(b"".join(frames))
        except OSError:  # dead, or alive and not reading
            raise self._ended() from None
        return len(frames)

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

    def _ended(self) -> EndedError:
        """A death that we did not order: the job's doing if it exploded, not if somebody killed it or we have a bug."""
        code = self._reap()
        return EndedError(f"the worker ended with {code}", limit=code in _EXPLOSIONS)

    def _reap(self) -> int:
        """End it, unless it did so itself, and say with which exit code."""
        if self.reaped:
            return 0
        self.kill()
        self.reaped = True
        return self._template.wait(self.pid)

    def _cpu(self) -> float:
        with contextlib.suppress(OSError):  # just died: the next read says so
            return time.clock_gettime(self._clock)
        return 0.0

    def _asleep(self) -> bool:
        """Waiting for something that will not come, and not merely for its turn on the CPU."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
        return False


def _environment() -> dict[str, str]:
    """Nothing of ours but the way to the code; a fixed hash seed, so that sets print and compare alike everywhere.

    One thread of BLAS: a pool of them for many cores does not fit into a worker's address space.
    """
    path = os.pathsep.join(entry for entry in sys.path if entry)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "LANG": "C.UTF-8", "PATH": os.defpath, **threads}
