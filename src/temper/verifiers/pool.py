"""Killable worker processes for everything that looks at model output: usable from any thread and event loop.

Contract: a check that hangs or explodes costs its own limit and is killed; a worker that somebody else killed costs a
retry and never a verdict. A job that passes its limit is tried once more on a fresh worker. Results are cached by
content. Workers are forks of a template that is spawned (never of this process with its threads), and die with us.

Checks that usually take a fraction of a millisecond travel many in a message, since a round trip costs more than they
do; each still has its own limit. As soon as one of them keeps the others waiting, those go back to the queue.

What this is not: a sandbox. Workers run *our* checks over hostile text; hostile programs go to `temper.sandboxes`.

    run ──▶ queue ──▶ one thread a worker ──▶ socket ──▶ temper.verifiers.worker
             ▲              │
             └── put back ──┘
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from temper.core.blame import FaultError
from temper.core.errors import BackendError
from temper.verifiers.processes import EndedError, Job, Template, Worker

_LOSSES = 10  # deaths that were nobody's limit before a job is given up as worker-lost
_BATCH_SECONDS = 5e-3  # that the checks of one message usually take together


class LimitError(Exception):
    """A check passed its limit twice, the second time on a fresh worker. Whose fault that is, the gold answer tells."""


class Pool:
    """`async with Pool(workers=2) as pool: await pool.run("package.module:function", arg, seconds=2.0)`.

    memory: bytes of address space a worker. recycle: jobs after which a worker is replaced. cached: results kept.
    """

    def __init__(self, workers: int = 2, memory: int = 1 << 30, recycle: int = 5000, cached: int = 8192) -> None:
        self._memory, self._recycle, self._cached = memory, recycle, cached
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._open = False
        self._lock = threading.Lock()
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._usual: dict[str, float] = {}  # CPU seconds of a function's checks, a moving average
        self._template = Template()
        self._workers: dict[int, Worker] = {}
        self._threads = [threading.Thread(target=self._serve, args=(n,), daemon=True) for n in range(workers)]

    @property
    def pids(self) -> list[int]:
        """Processes alive now."""
        return [worker.pid for worker in list(self._workers.values()) if not worker.reaped]

    async def run(self, function: str, *args: Any, seconds: float = 2.0) -> Any:
        """Call `function(*args)` in a worker. Arguments and result are msgpack data.

        Raises LimitError (twice past `seconds`, the memory limit or the recursion limit), FaultError("verifier-crash")
        when the function raised, FaultError("worker-lost") when workers kept being killed or got no CPU.
        """
        payload = msgspec.msgpack.encode((function, args))
        key = hashlib.blake2b(payload, digest_size=16).digest()
        if (found := self._cache.get(key)) is not None:
            return msgspec.msgpack.decode(found)
        job = Job(function, len(payload).to_bytes(4, "little") + payload, seconds)
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
            worker.kill()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._template.close()
        while not self._queue.empty():  # put back behind the end marks
            if job := self._queue.get_nowait():
                job.settle(error=_closed())

    def _serve(self, slot: int) -> None:
        """One thread, at most one worker."""
        while (job := self._queue.get()) is not None:
            batch = [job, *self._companions(job)]
            try:
                self._decide(slot, batch)
            except Exception as error:  # the boundary between this thread and whoever awaits
                for job in batch:
                    job.settle(error=error)
            if slot in self._workers and self._workers[slot].jobs >= self._recycle:
                self._drop(slot)
        self._drop(slot)

    def _companions(self, first: Job) -> list[Job]:
        """This thread's share of what waits, as far as it usually takes no time."""
        found: list[Job] = []
        share = self._queue.qsize() // len(self._threads)
        seconds = self._usual.get(first.function, 1.0)
        while seconds < _BATCH_SECONDS and len(found) < share:
            try:
                job = self._queue.get_nowait()
            except Empty:
                break
            if job is None:  # closing
                self._queue.put(job)
                break
            found.append(job)
            seconds += self._usual.get(job.function, 1.0)
        return found

    def _decide(self, slot: int, batch: list[Job]) -> None:
        """Settle every job of the batch, over as many workers as that takes, or put it back into the queue."""
        left = deque(job for job in batch if not job.future.done())
        elsewhere: list[Job] = []
        while left and self._open:
            try:
                worker, sent = self._worker(slot), 0
                while left:
                    sent = sent or worker.send(left)
                    self._settle(left[0], *worker.answer(left[0], partial(self._put_back, left, elsewhere)))
                    left.popleft()
                    sent -= 1
            except EndedError as error:
                self._drop(slot)
                _blame(left[0], error)
                left = deque(job for job in left if not job.future.done() and job not in elsewhere)
        for job in left:
            job.settle(error=_closed())

    def _settle(self, job: Job, kind: str, content: Any, seconds: float) -> None:
        if kind == "limit":
            raise EndedError(content, limit=True)
        self._usual[job.function] = 0.8 * self._usual.get(job.function, seconds) + 0.2 * seconds
        job.settle(content, FaultError("verifier-crash", job.function, content) if kind == "crash" else None)

    def _put_back(self, left: deque[Job], elsewhere: list[Job]) -> None:
        """The first one takes its time: whoever is free takes the others, and the first result counts."""
        waiting = [job for job in list(left)[1:] if job not in elsewhere]
        elsewhere += waiting
        for job in waiting:
            self._queue.put(job)

    def _worker(self, slot: int) -> Worker:
        if slot not in self._workers:
            self._workers[slot] = Worker(self._template, self._memory)
        return self._workers[slot]

    def _drop(self, slot: int) -> None:
        if worker := self._workers.pop(slot, None):
            worker.close()


def _blame(job: Job, error: EndedError) -> None:
    """The worker ended over this job. Once may be chance; again on a fresh worker settles it."""
    job.limits, job.losses = job.limits + error.limit, job.losses + (not error.limit)
    if job.limits > 1:
        job.settle(error=LimitError(str(error)))
    if job.losses > _LOSSES:
        job.settle(error=FaultError("worker-lost", "verifiers.pool", str(error)))


def _closed() -> BackendError:
    return BackendError("the verifier pool was closed")
