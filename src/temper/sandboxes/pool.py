"""A pool in front of any backend, and itself one: warm sandboxes by spec, admission, leases, a census.

Admission: no more than `alive` sandboxes; a start must leave `reserve` bytes of the machine's memory free beside what
its spec may use; and as many starts go on at once as do not slow each other down (`Pace`). Who is not admitted waits in
order, for `wait` seconds at most, and then gets FaultError("wait-limit"), never a score.

Leases: what is opened through `leased(backend, whom)`, forks included, ends with that block, however it ends. A sandbox
that its owner has dropped without closing it is closed as well; those of a process that died end with it (the backend's
doing). Warm sandboxes have never been used: each is handed out once.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from temper.core import registry
from temper.core.blame import FaultError
from temper.core.protocols import Enforcement, Sandbox, SandboxBackend, Snapshots
from temper.core.task import SandboxSpec

_DOUBTFUL = 5.0  # a sandbox that has been warm for longer is tried before it is handed out
_AGAIN = 0.2  # seconds until memory is looked at again for those who wait


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`backend`: the pooled one, a table with `kind` or just the kind. `warm`: sandboxes kept ready, over all specs."""

    backend: Any = "local"
    alive: int = 512
    warm: int = 16
    reserve: int = 1 << 30
    wait: float = 120.0


def create(config: Config | None = None) -> Pool:
    config = config or Config()
    module, settings = registry.configure("sandboxes", config.backend)
    return Pool(module.create(settings), config)


class Alive(Struct, frozen=True):
    """One line of the census: a sandbox, its state, for whom, and for how many seconds so."""

    id: str
    state: Literal["warm", "leased"]
    whom: str
    seconds: float


class Pace:
    """How many starts may go on at once: more as long as each is about as quick as it can be, fewer when not. Pure."""

    def __init__(self) -> None:
        self.limit = 4.0
        self.best = float("inf")  # seconds; forgets slowly

    def started(self, seconds: float) -> None:
        self.best = min(self.best * 1.02, seconds)
        self.limit = min(self.limit + 1 / self.limit, 64.0) if seconds < 4 * self.best else max(self.limit * 0.8, 2.0)


@contextlib.asynccontextmanager
async def leased(backend: SandboxBackend, whom: str) -> AsyncIterator[SandboxBackend]:
    """`backend` for one rollout, whose name is its own; a backend that is no pool is given as it is."""
    try:
        yield named(backend, whom)
    finally:
        if isinstance(backend, Pool):
            await asyncio.shield(backend.end(whom))


def named(backend: SandboxBackend, whom: str) -> SandboxBackend:
    """`backend`, for somebody who closes what he opens, and whose name the census is to show."""
    return Lease(backend, whom) if isinstance(backend, Pool) else backend


class Lease:
    """The pool, for one user of it."""

    def __init__(self, pool: Pool, whom: str) -> None:
        self._pool = pool
        self._whom = whom

    def capabilities(self) -> Mapping[str, Enforcement]:
        return self._pool.capabilities()

    async def open(self, spec: SandboxSpec) -> Sandbox:
        return await self._pool.open(spec, self._whom)

    async def close(self) -> None:
        await self._pool.end(self._whom)


class Pool:
    def __init__(self, backend: SandboxBackend, config: Config, available: Callable[[], int] | None = None) -> None:
        """`available`: bytes of memory that are free now; this machine's by default."""
        self.backend = backend
        self.config = config
        self.pace = Pace()
        self._available = available or free_memory
        self._boxes: dict[int, _Held] = {}
        self._warm: dict[bytes, list[_Held]] = {}  # by spec; the spec used last comes last
        self._target: collections.Counter[bytes] = collections.Counter()
        self._starting: list[int] = []  # memory of each
        self._queue: collections.deque[tuple[int, asyncio.Future[None]]] = collections.deque()
        self._refilling = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def capabilities(self) -> Mapping[str, Enforcement]:
        return self.backend.capabilities()

    def census(self) -> list[Alive]:
        """What is alive, the oldest first."""
        now = time.monotonic()
        found = [Alive(h.box.id, "leased" if h.whom else "warm", h.whom, now - h.since) for h in self._boxes.values()]
        return sorted(found, key=lambda alive: -alive.seconds)

    async def open(self, spec: SandboxSpec, whom: str = "somebody") -> Pooled:
        """A sandbox, warm where there is one. Raises what the backend raises, and FaultError("wait-limit")."""
        bare = msgspec.structs.replace(spec, files={})
        key = msgspec.msgpack.encode(bare)
        held = await self._from_stock(key)
        if held is None:
            self._target[key] = min(self._target[key] + 1, self.config.warm)
            await self._admitted(whom, bare)
            held = await self._started(bare)
        held.whom, held.since = whom, time.monotonic()
        try:
            await _put(held.box, spec.files)
        except BaseException:
            await self._end(held)
            raise
        self._background(self._refill(key, bare))
        return (PooledSnapshots if isinstance(held.box, Snapshots) else Pooled)(self, held)

    async def end(self, whom: str) -> None:
        """Closes all that is leased to `whom`."""
        theirs = [held for held in self._boxes.values() if held.whom == whom]
        await asyncio.gather(*(self._end(held) for held in theirs), return_exceptions=True)

    async def close(self) -> None:
        self._closed = True
        for _, turn in self._queue:
            if not turn.done():
                turn.set_exception(FaultError("backend-lost", "sandboxes.pool", "the pool is closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(held.box.close() for held in self._boxes.values()), return_exceptions=True)
        await self.backend.close()

    # ---- starting ----

    async def _started(self, spec: SandboxSpec) -> _Held:
        """A new sandbox; its memory is among those of `_starting`."""
        began = time.monotonic()
        try:
            held = _Held(await self.backend.open(spec))
            self._boxes[id(held)] = held
            self.pace.started(time.monotonic() - began)
            return held
        finally:
            self._starting.remove(spec.memory)
            self._look()

    async def _admitted(self, whom: str, spec: SandboxSpec) -> None:
        turn = asyncio.get_running_loop().create_future()
        entry = (spec.memory, turn)
        self._queue.append(entry)
        self._look()
        try:
            async with asyncio.timeout(self.config.wait):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled() and not turn.exception():
                self._starting.remove(spec.memory)  # it was its turn at that very moment
            elif entry in self._queue:
                self._queue.remove(entry)
            self._look()
            if isinstance(error, TimeoutError):
                raise FaultError("wait-limit", "sandboxes.pool", self._why(whom, spec)) from None
            raise

    def _look(self) -> None:
        """Lets those who wait go on, in order, as long as there is room."""
        while self._queue and self._has_room(self._queue[0][0]):
            memory, turn = self._queue.popleft()
            if not turn.done():
                self._starting.append(memory)
                turn.set_result(None)
        if self._queue and len(self._starting) < self.pace.limit:
            self._make_room()
        if self._queue and self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(_AGAIN, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._look()

    def _has_room(self, memory: int) -> bool:
        if len(self._boxes) + len(self._starting) >= self.config.alive or len(self._starting) >= self.pace.limit:
            return False
        if not self._boxes and not self._starting:
            return True  # one alone always may
        return self._available() - self.config.reserve - sum(self._starting) >= memory

    def _make_room(self) -> None:
        """One warm sandbox less, of the spec that was used longest ago."""
        for key, stock in self._warm.items():
            if stock:
                self._target[key] = 0
                self._background(self._end(stock.pop(0)))
                return

    def _why(self, whom: str, spec: SandboxSpec) -> str:
        alive = self.census()
        oldest = f"; the oldest is {alive[0].id}, {alive[0].state} {alive[0].whom}" if alive else ""
        return (
            f"{whom} waited {self.config.wait:g} s for a sandbox of {spec.memory >> 20} MiB: {len(alive)} of "
            f"{self.config.alive} alive, {len(self._starting)} starting, {self._available() >> 20} MiB free, of which "
            f"{self.config.reserve >> 20} are reserved{oldest}"
        )

    # ---- the stock ----

    async def _from_stock(self, key: bytes) -> _Held | None:
        stock = self._warm.pop(key, [])
        self._warm[key] = stock
        while stock:
            held = stock.pop()
            if time.monotonic() - held.since < _DOUBTFUL:
                return held
            try:
                await held.box.exec(["true"])
            except FaultError:
                await self._end(held)
            except BaseException:
                await self._end(held)
                raise
            else:
                return held
        return None

    async def _refill(self, key: bytes, spec: SandboxSpec) -> None:
        """Starts what this spec's stock lacks, while nobody waits."""
        async with self._refilling:
            while not self._queue and len(self._warm[key]) < self._target[key] and self._has_room(spec.memory):
                if sum(len(stock) for stock in self._warm.values()) >= self.config.warm:
                    self._make_room()
                self._starting.append(spec.memory)
                held = await self._started(spec)
                self._warm[key].append(held)

    # ---- ending ----

    async def _end(self, held: _Held) -> None:
        if not held.ending:
            held.ending = True
            try:
                await held.box.close()
            finally:
                del self._boxes[id(held)]
                self._look()

    def _dropped(self, held: _Held, loop: asyncio.AbstractEventLoop) -> None:
        """The handle was collected, perhaps in another thread."""
        if not held.ending and not loop.is_closed():
            loop.call_soon_threadsafe(lambda: self._background(self._end(held)))

    def _background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        """What failed in the background is told to the next who opens a sandbox, and will meet it too."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()


class _Held:
    """A sandbox of the pool; `whom` is "" while it is warm."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        self.whom = ""
        self.ending = False
        self.since = time.monotonic()


class Pooled:
    """A leased sandbox: the backend's own, but for `close`."""

    def __init__(self, pool: Pool, held: _Held) -> None:
        self.id = held.box.id
        self.capabilities = held.box.capabilities
        self.exec, self.put, self.get = held.box.exec, held.box.put, held.box.get
        self._pool = pool
        self._held = held
        weakref.finalize(self, pool._dropped, held, asyncio.get_running_loop()).atexit = False

    def __getattr__(self, name: str) -> Any:
        """What else the backend's sandboxes can do."""
        return getattr(self._held.box, name)

    async def close(self) -> None:
        await self._pool._end(self._held)


class PooledSnapshots(Pooled):
    async def snapshot(self) -> str:
        return await self._held.box.snapshot()  # type: ignore[attr-defined]

    async def rollback(self, snapshot: str) -> None:
        await self._held.box.rollback(snapshot)  # type: ignore[attr-defined]

    async def fork(self, snapshot: str, n: int) -> list[Sandbox]:
        """The forks are of the same lease; they are admitted at once, since their rollout goes on only with them."""
        boxes = await self._held.box.fork(snapshot, n)  # type: ignore[attr-defined]
        forks: list[Sandbox] = []
        for box in boxes:
            held = _Held(box)
            held.whom = self._held.whom
            self._pool._boxes[id(held)] = held
            forks.append(PooledSnapshots(self._pool, held))
        return forks


async def _put(box: Sandbox, files: Mapping[str, bytes]) -> None:
    together = getattr(box, "put_all", None)
    if files and together is not None:
        await together(files)
        return
    for path, content in files.items():
        await box.put(path, content)


def free_memory() -> int:
    """Bytes that can be used without swapping: the machine's, or what this process's cgroup leaves."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) << 10
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        free = min(free, int(text) - int(used.read_text()))
    return free
