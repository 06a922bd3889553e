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
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from temper.core import registry
from temper.core.blame import FaultError
from temper.core.protocols import Enforcement, Sandbox, SandboxBackend, Sessions, Snapshots
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
async def leased(backend: SandboxBackend, whom: str) -> AsyncGenerator[SandboxBackend]:
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
        self._pool, self._whom = pool, whom
        self.capabilities = pool.capabilities

    async def open(self, spec: SandboxSpec) -> Sandbox:
        return await self._pool.open(spec, self._whom)

    async def close(self) -> None:
        await self._pool.end(self._whom)


class Pool:
    def __init__(self, backend: SandboxBackend, config: Config, available: Callable[[], int] | None = None) -> None:
        """`available`: bytes of memory that are free now; this machine's by default."""
        self.backend, self.config = backend, config
        self.pace = Pace()
        self._available = available or free_memory
        self._boxes: set[_Held] = set()
        self._warm: dict[bytes, list[_Held]] = {}  # by spec; the spec used last comes last
        self._target: collections.Counter[bytes] = collections.Counter()
        self._starting: list[int] = []  # memory of each
        self._turn = asyncio.Lock()  # held by the first of those who wait; it hands itself on in order
        self._changed = asyncio.Event()
        self._refilling = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def capabilities(self) -> Mapping[str, Enforcement]:
        return self.backend.capabilities()

    def census(self) -> list[Alive]:
        """What is alive, the oldest first."""
        now = time.monotonic()
        found = [Alive(h.box.id, "leased" if h.whom else "warm", h.whom, now - h.since) for h in self._boxes]
        return sorted(found, key=lambda alive: -alive.seconds)

    async def open(self, spec: SandboxSpec, whom: str = "somebody") -> Pooled:
        """A sandbox, warm where there is one. Raises what the backend raises, and FaultError("wait-limit")."""
        bare = msgspec.structs.replace(spec, files={})
        key = msgspec.msgpack.encode(bare)
        held = await self._from_stock(key)
        if held is None:
            self._target[key] = min(self._target[key] + 1, self.config.warm)
            await self._admitted(whom, bare.memory)
            held = await self._started(bare)
        held.whom, held.since = whom, time.monotonic()
        try:
            await _put(held.box, spec.files)
        except BaseException:
            await self.finish(held)
            raise
        self._background(self._refill(key, bare))
        return Pooled(self, held)

    async def end(self, whom: str) -> None:
        """Closes all that is leased to `whom`."""
        theirs = [held for held in self._boxes if held.whom == whom]
        await asyncio.gather(*map(self.finish, theirs), return_exceptions=True)

    async def close(self) -> None:
        self._closed = True
        self._changed.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(held.box.close() for held in self._boxes), return_exceptions=True)
        await self.backend.close()

    # ---- starting ----

    async def _started(self, spec: SandboxSpec) -> _Held:
        """A new sandbox; its memory is among those of `_starting`."""
        began = time.monotonic()
        try:
            held = self.hold(await self.backend.open(spec), "")
            self.pace.started(time.monotonic() - began)
            return held
        finally:
            self._starting.remove(spec.memory)
            self._changed.set()

    def hold(self, box: Sandbox, whom: str) -> _Held:
        held = _Held(box, whom)
        self._boxes.add(held)
        return held

    async def _admitted(self, whom: str, memory: int) -> None:
        """Its memory is among those of `_starting` then."""
        try:
            async with asyncio.timeout(self.config.wait), self._turn:
                while not self._has_room(memory):
                    if len(self._starting) < self.pace.limit:
                        self._make_room()
                    self._changed.clear()
                    again = asyncio.get_running_loop().call_later(_AGAIN, self._changed.set)
                    await self._changed.wait()
                    again.cancel()
                self._starting.append(memory)
        except TimeoutError:
            raise FaultError("wait-limit", "sandboxes.pool", self._why(whom, memory)) from None

    def _has_room(self, memory: int) -> bool:
        if self._closed:
            raise FaultError("backend-lost", "sandboxes.pool", "the pool is closed")
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
                self._background(self.finish(stock.pop(0)))
                return

    def _why(self, whom: str, memory: int) -> str:
        alive = self.census()
        oldest = f"; the oldest is {alive[0].id}, {alive[0].state} {alive[0].whom}" if alive else ""
        return (
            f"{whom} waited {self.config.wait:g} s for a sandbox of {memory >> 20} MiB: {len(alive)} of "
            f"{self.config.alive} alive, {len(self._starting)} starting, {self._available() >> 20} MiB free, of which "
            f"{self.config.reserve >> 20} are reserved{oldest}"
        )

    # ---- the stock ----

    async def _from_stock(self, key: bytes) -> _Held | None:
        stock = self._warm[key] = self._warm.pop(key, [])
        while stock:
            held = stock.pop()
            if time.monotonic() - held.since < _DOUBTFUL:
                return held
            try:
                await held.box.exec(["true"])
                return held
            except BaseException as error:
                await self.finish(held)
                if not isinstance(error, FaultError):
                    raise
        return None

    async def _refill(self, key: bytes, spec: SandboxSpec) -> None:
        """Starts what this spec's stock lacks, while nobody waits."""
        async with self._refilling:
            while not self._turn.locked() and len(self._warm[key]) < self._target[key] and self._has_room(spec.memory):
                if sum(len(stock) for stock in self._warm.values()) >= self.config.warm:
                    self._make_room()
                self._starting.append(spec.memory)
                self._warm[key].append(await self._started(spec))

    # ---- ending ----

    async def finish(self, held: _Held) -> None:
        if not held.ending:
            held.ending = True
            try:
                await held.box.close()
            finally:
                self._boxes.discard(held)
                self._changed.set()

    def dropped(self, held: _Held, loop: asyncio.AbstractEventLoop) -> None:
        """The handle was collected, perhaps in another thread."""
        if not held.ending and not loop.is_closed():
            loop.call_soon_threadsafe(lambda: self._background(self.finish(held)))

    def _background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[None]) -> None:
        """What failed in the background is told to the next who opens a sandbox, and will meet it too."""
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()


@dataclass(eq=False)
class _Held:
    """A sandbox of the pool; `whom` is "" while it is warm."""

    box: Sandbox
    whom: str
    ending: bool = False
    since: float = field(default_factory=time.monotonic)


class Pooled:
    """A leased sandbox: the backend's own, but for `close` and for `fork`, where the backend has that."""

    def __init__(self, pool: Pool, held: _Held) -> None:
        box = held.box
        self.id, self.capabilities = box.id, box.capabilities
        self.exec, self.put, self.get = box.exec, box.put, box.get
        if isinstance(box, Snapshots):
            self.snapshot, self.rollback = box.snapshot, box.rollback
        if isinstance(box, Sessions):
            self.session = box.session
        self._pool, self._held = pool, held
        weakref.finalize(self, pool.dropped, held, asyncio.get_running_loop()).atexit = False

    def __getattr__(self, name: str) -> Any:
        """What else the backend's sandboxes can do."""
        return getattr(self._held.box, name)

    async def fork(self, snapshot: str, n: int) -> list[Pooled]:
        """The forks are of the same lease; they are admitted at once, since their rollout goes on only with them."""
        boxes = await self._held.box.fork(snapshot, n)  # type: ignore[attr-defined]
        return [Pooled(self._pool, self._pool.hold(box, self._held.whom)) for box in boxes]

    async def close(self) -> None:
        await self._pool.finish(self._held)


async def _put(box: Sandbox, files: Mapping[str, bytes]) -> None:
    together = getattr(box, "put_all", None)
    if files and together is not None:
        await together(files)
        return
    for path, content in files.items():
        await box.put(path, content)


def free_memory() -> int:
    """Bytes that can be used without swapping: the machine's, or what this process's cgroup leaves."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) << 10
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and (text := limit.read_text().strip()) != "max":
        free = min(free, int(text) - int(used.read_text()))
    return free
