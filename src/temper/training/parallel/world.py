"""The ranks as one of them sees them: orders from rank 0, meetings, sums, and waits that end and name a rank.

    with joined() as world:        # started by torchrun; None elsewhere
    with company(2) as world:      # rank 0 here, with followers as children
        with world.act(Order("step", ...)): all ranks are inside, or know which one is not

Each rank shows once a second that it lives. A wait ends when its rank falls silent, when one says that it failed, or at
the limit; the error says which rank, and what it was last doing. What a rank raises in an act ends the world for all.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import reduce
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from temper.core.errors import BackendError, DeadlineError
from temper.core.trace import MicroBatch
from temper.store import codec

LIMIT = 1800.0  # seconds that one rank may keep the others waiting
SILENCE = 60.0  # seconds without a sign of life after which a rank counts as gone
_START = 600.0  # seconds until all have come
_BEAT = 1.0

_current: World | None = None


class Order(Struct, frozen=True):
    """A method, by name, of the object `number`, with its arguments; and the objects that rank 0 still holds."""

    do: str
    number: int = -1
    spec: bytes = b""
    batches: tuple[MicroBatch, ...] = ()
    folder: str = ""
    version: int = 0
    held: tuple[int, ...] = ()


def current() -> World | None:
    """The world that this process has joined."""
    return _current


@contextlib.contextmanager
def joined(seconds: float = LIMIT, given: Mapping[str, str] = os.environ) -> Iterator[World | None]:
    """Join the ranks that torchrun started, or whose variables are `given`; None where there are no others."""
    if int(given.get("WORLD_SIZE", 1)) == 1:
        yield None
        return
    keeps = given.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and given["RANK"] == "0"
    store = _store(given["MASTER_ADDR"], int(given["MASTER_PORT"]), keeps)
    store = dist.PrefixStore(given.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    with _world(store, int(given["RANK"]), int(given["WORLD_SIZE"]), seconds) as world:
        yield world


def invited(size: int, address: str = "127.0.0.1") -> tuple[dist.Store, list[dict[str, str]]]:
    """A store of this process, for as long as it is held, and by rank the variables with which `joined` finds it."""
    store = _store(address, 0, True)
    where = {"MASTER_ADDR": address, "MASTER_PORT": str(store.port), "WORLD_SIZE": str(size)}
    return store, [{**where, "RANK": str(rank), "TORCHELASTIC_USE_AGENT_STORE": "True"} for rank in range(size)]


@contextlib.contextmanager
def company(size: int, seconds: float = LIMIT) -> Iterator[World]:
    """A world of `size` with rank 0 in this process. Its followers are children, which end with it."""
    _kept, (mine, *others) = invited(size)
    path = {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-m", "temper.training.parallel.follower", str(seconds)]
    children: list[subprocess.Popen[bytes]] = []
    try:
        for given in others:
            theirs = {"OMP_NUM_THREADS": "1", **os.environ, **path, **given, "LOCAL_RANK": given["RANK"]}
            children.append(subprocess.Popen(command, env=theirs, stdin=subprocess.DEVNULL))
        with joined(seconds, mine) as world:
            assert world is not None
            world.children = tuple(children)
            yield world
    finally:
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(60)
            child.kill()
            child.wait()


def _store(address: str, port: int, keeps: bool) -> dist.TCPStore:
    limit = timedelta(seconds=_START)
    try:
        return dist.TCPStore(address, port, is_master=keeps, timeout=limit, wait_for_workers=False)
    except RuntimeError as error:
        raise BackendError(f"the ranks' store at {address} does not answer: {error}") from error


@contextlib.contextmanager
def _world(store: dist.Store, rank: int, size: int, seconds: float) -> Iterator[World]:
    global _current
    assert _current is None, "a process joins one world at a time"
    world = World(store, rank, size, seconds)
    beating = threading.Thread(target=world.beat, name="beat", daemon=True)
    beating.start()
    local, limit = int(os.environ.get("LOCAL_RANK", 0)), timedelta(seconds=seconds)
    if local < torch.cuda.device_count():
        torch.cuda.set_device(local)
    kinds = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        world.meet("start")
        pairs = dist.PrefixStore("group", store)  # where ranks find each other
        dist.init_process_group(kinds, store=pairs, rank=rank, world_size=size, timeout=limit)
        _current = world
        yield world
        world.part()
    except BaseException as error:
        world.fail(error)
        raise
    finally:
        _current = None
        world.over.set()
        beating.join()
        if dist.is_initialized():
            dist.destroy_process_group()


class World:
    """One rank's view. `seconds`: the limit of every wait."""

    def __init__(self, store: dist.Store, rank: int, size: int, seconds: float) -> None:
        self.rank, self.size, self.seconds = rank, size, seconds
        self.children: tuple[subprocess.Popen[bytes], ...] = ()
        self.doing = "idle"
        self.over = threading.Event()
        self._store = store
        self._depth = 0
        self._orders, self._meetings, self._numbers = count(), count(), count()
        self._held: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._seen: dict[int, tuple[bytes, float]] = {}  # the last sign of life of each rank, and when it came

    # --- acting together ----------------------------------------------------------------------------------------------

    def number(self, thing: Any) -> int:
        """That by which orders name an object of rank 0's, -1 for one that they cannot."""
        return self._held.get(thing, -1)

    def add(self, thing: Any) -> int:
        self._held[thing] = next(self._numbers)
        return self._held[thing]

    @property
    def acting(self) -> bool:
        return self._depth > 0

    @contextlib.contextmanager
    def act(self, order: Order, shares: Sequence[Sequence[MicroBatch]] = ()) -> Iterator[None]:
        """Do what is inside on every rank: rank 0 tells the others, unless it is part of what they were told.

        `shares`: the order's batches, by rank.
        """
        outermost, before = self._depth == 0, self.doing
        self.doing = order.do
        self._depth += 1
        try:
            if outermost and self.rank == 0:
                self._tell(order, shares)
            yield
            if outermost:
                self.meet(f"the end of {order.do}")
        except BaseException as error:
            if outermost and (why := self.fail(error)):
                raise BackendError(why) from error
            raise
        finally:
            self._depth -= 1
            self.doing = before

    def orders(self) -> Iterator[Order]:
        """What rank 0 wants of this rank, until the end of the world."""
        for number in self._orders:
            key = f"order/{number}/{self.rank}"
            order = codec.decode(self._wait(0, key, "the next order", float("inf")), Order)
            self._store.delete_key(key)
            if order.do == "part":
                return
            yield order

    def meet(self, what: str, mine: bytes = b"") -> list[bytes]:
        """Wait until every rank is here; what each of them brought."""
        number = next(self._meetings)
        limit = self.seconds if number else _START
        self._store.set(f"meeting/{number}/{self.rank}", mine)
        found = [self._wait(rank, f"meeting/{number}/{rank}", what, limit) for rank in range(self.size)]
        if number:  # everyone is here, so everyone has read the last one's
            self._store.delete_key(f"meeting/{number - 1}/{self.rank}")
        return found

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Add up each tensor over the ranks, in place and in fp32 at least."""
        if not tensors:
            return
        wide = reduce(torch.promote_types, (t.dtype for t in tensors), torch.float32)
        flat = torch.cat([t.reshape(-1).to(wide) for t in tensors])
        dist.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def send(self, tensors: Iterable[Tensor]) -> None:
        """Rank 0's values into everyone's tensors."""
        for tensor in tensors:
            dist.broadcast(tensor, 0)

    # --- waits and ends -----------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Show that this rank lives, and what it does, until the world is over."""
        for number in count():
            with contextlib.suppress(RuntimeError):  # whoever waits finds out
                self._store.set(f"beat/{self.rank}", f"{number} {self.doing}")
            if self.over.wait(_BEAT):
                return

    def part(self) -> None:
        """The good end: rank 0, which may keep the store, goes last."""
        if self.rank:
            self._store.set(f"left/{self.rank}", b"")
            return
        self._tell(Order("part"), ())
        for rank in range(1, self.size):
            self._wait(rank, f"left/{rank}", "its end", self.seconds)

    def fail(self, error: BaseException) -> str:
        """Tell the others that this rank failed; gives another rank's failure where that is the cause."""
        cause = ""
        try:
            if isinstance(error, RuntimeError):  # a collective, perhaps, whose other side is gone
                cause = self._cause(error)
            if not self._store.check(["failed"]):
                why = f"rank {self.rank} failed in {self.doing}: {type(error).__name__}: {error}"
                self._store.set("failed", cause or why)
        except RuntimeError:
            cause = f"rank {self.rank} lost the ranks' store, so rank 0 is gone: {error}"
        return cause

    def _cause(self, error: RuntimeError) -> str:
        others = [rank for rank in range(self.size) if rank != self.rank and self._silent(rank) >= 0]
        until = time.monotonic() + 3 * _BEAT
        while time.monotonic() < until:
            if self._store.check(["failed"]):
                return self._store.get("failed").decode()
            time.sleep(0.05)
        gone = [f"rank {rank} is gone, {self._last(rank)}" for rank in others if self._silent(rank) > 2 * _BEAT]
        return f"{'; '.join(gone)}: {error}" if gone else ""

    def _tell(self, order: Order, shares: Sequence[Sequence[MicroBatch]]) -> None:
        order = replace(order, held=tuple(self._held.values()))
        number = next(self._orders)
        for rank in range(1, self.size):
            mine = replace(order, batches=tuple(shares[rank])) if shares else order
            self._store.set(f"order/{number}/{rank}", codec.encode(mine))

    def _wait(self, rank: int, key: str, what: str, limit: float) -> bytes:
        """The value of `key`, which `rank` sets."""
        began, pause = time.monotonic(), 0.0005
        try:
            while not self._store.check([key]):
                if self._store.check(["failed"]):
                    raise BackendError(self._store.get("failed").decode())
                if self._silent(rank) > min(SILENCE, limit) or time.monotonic() - began > limit:
                    raise DeadlineError(
                        f"rank {self.rank} waits for rank {rank} at {what}: nothing after "
                        f"{time.monotonic() - began:.0f} s, {self._last(rank)}"
                    )
                time.sleep(pause)
                pause = min(2 * pause, 0.05)
            return self._store.get(key)
        except RuntimeError as error:
            raise BackendError(f"rank {self.rank} lost the ranks' store, so rank 0 is gone: {error}") from error

    def _silent(self, rank: int) -> float:
        """Seconds since the last new sign of life; none before the first, which the limit alone waits for."""
        key = f"beat/{rank}"
        sign = self._store.get(key) if self._store.check([key]) else b""
        if not sign or rank not in self._seen or self._seen[rank][0] != sign:
            self._seen[rank] = sign, time.monotonic()
        return time.monotonic() - self._seen[rank][1]

    def _last(self, rank: int) -> str:
        doing = self._seen[rank][0].decode().partition(" ")[2]
        return f"last seen {self._silent(rank):.0f} s ago, {doing}" if doing else "never seen"
