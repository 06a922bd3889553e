"""Attempts on environment workers: the driver's side of them.

    Workshop.attempt ──▶ Farm ── turn: orders out, what has ended back ──▶ `worker`, in an executor's worker

What runs where is `scheduling.placement`'s decision; workers that died are started anew, and an attempt whose worker
died is a fault: whoever asked for it tries again. The policy's own engine lives in the driver, beside the trainer: what
it samples is played there, and not here.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from temper.core import registry
from temper.core.blame import FaultError
from temper.core.errors import BackendError, ConfigError, RefusedError, TemperError
from temper.core.protocols import Handle
from temper.core.trace import Trace
from temper.runs import worker
from temper.runs.worker import Ended, Order, Setup
from temper.scheduling.placement import Placement, told
from temper.store import codec

_TURN, _FULL_TURN = 0.2, 1.0  # seconds a turn waits for an attempt to end, with and without room for new orders
_HUNG = 120.0  # seconds without an answer after which a worker counts as lost
_CLOSE = 60.0


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """executor: a table with `kind`, or the kind. at_once: attempts of one worker. resources: of one worker.

    model: an engine's table (`kind` = `openai`, `scripted`); then that model is evaluated, and nothing is trained. Each
    worker divides its own episodes among several endpoints of it (`runs.endpoints`).
    """

    executor: Any = "processes"
    count: int = 2
    at_once: int = 16
    resources: dict[str, float] = msgspec.field(default_factory=lambda: {"cpus": 1.0})
    model: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.count < 1 or self.at_once < 1:
            raise ConfigError(f"workers: expected count and at_once of 1 or more, got {self.count} and {self.at_once}")
        for name, amount in self.resources.items():
            if not 0 < amount < math.inf:
                raise ConfigError(f"workers.resources: expected an amount of {name} above 0, got {amount:g}")


def check(config: Config) -> None:
    """Raises ConfigError, MissingError for what is unknown, RefusedError for resources that the executor does not give,
    and for a model that only the driver can hold."""
    executor, _ = registry.configure("scheduling.executors", config.executor)
    gives = getattr(executor, "GIVES", config.resources)
    if others := sorted(config.resources.keys() - gives):
        raise RefusedError(
            f"workers.resources: this executor gives {', '.join(gives)}, and not {', '.join(others)}; leave that out, "
            'or choose one that may have it: executor = "ray"'
        )
    if config.model:
        module, _ = registry.configure("engines", config.model)
        if "base" in inspect.signature(module.create).parameters:
            raise RefusedError(
                f"workers.model: the engine {config.model['kind']} needs a base model and lives in the driver; serve "
                'the model behind an endpoint, and give workers that: kind = "openai"'
            )


@dataclass(eq=False)
class _Post:
    """A worker, as the driver sees it: what it is to be told in the next turn."""

    handle: Handle
    starts: list[tuple[int, str, float, bytes]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Farm:
    """`async with Farm(...) as farm: trace, verdict = await farm.attempt(order)`. `event` is told what workers do."""

    def __init__(self, config: Config, setup: Setup, event: Callable[..., None], clock: Callable[[], float]) -> None:
        module, settings = registry.configure("scheduling.executors", config.executor)
        self._executor = module.create(settings)
        self._config, self._setup, self._event, self._clock = config, setup, event, clock
        self._placement = Placement(config.at_once)
        self._numbers, self._names = itertools.count(), itertools.count(1)
        self._orders: dict[int, tuple[str, bytes, asyncio.Future[Ended]]] = {}
        self._posts: dict[str, _Post] = {}
        self._hiring: set[asyncio.Task[Exception | None]] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._closing = False

    async def __aenter__(self) -> Farm:
        """With one worker; the others come while it works."""
        try:
            self._hire()
            done, _ = await asyncio.wait(self._hiring, return_when=asyncio.FIRST_COMPLETED)
            if not self._posts and (error := next(iter(done)).result()):
                raise error
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._closing = True
        for hiring in self._hiring:
            hiring.cancel()
        for post in self._posts.values():
            post.woken.set()
        await asyncio.gather(*self._hiring, *self._serving, return_exceptions=True)
        for number in self._orders:
            self._settle(number, FaultError("worker-lost", "runs.farm", "the workers were closed"))
        await self._executor.close()

    async def attempt(self, order: Order) -> tuple[bytes, bytes]:
        """Trace and verdict, as `store.codec` writes them.

        Raises FaultError with the worker's name in `where` when it was lost, BackendError for what a domain raised.
        """
        number = next(self._numbers)
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._orders[number] = order.trace, codec.encode(order), future
        self._placement.asked(number, order.task.id)
        self._hire()
        self._place()
        try:
            ended = await future
        finally:
            del self._orders[number]
            if future.cancelled():
                self._drop(number)
        if ended.error:
            raise BackendError(f"attempt {order.trace} failed in its worker:\n{ended.error}")
        return ended.trace, ended.verdict

    def _place(self) -> None:
        while start := self._placement.next():
            _, order, _ = self._orders[start.attempt]
            post = self._posts[start.worker]
            post.starts.append((start.attempt, start.why, self._clock(), order))
            post.woken.set()

    def _drop(self, number: int) -> None:
        if post := self._posts.get(self._placement.dropped(number)):
            post.cancelled.append(number)
            post.woken.set()
        self._place()

    def _settle(self, number: int, found: Ended | FaultError) -> None:
        future = self._orders[number][2]
        if future.done():
            return  # cancelled just now
        if isinstance(found, Ended):
            future.set_result(found)
        else:
            future.set_exception(found)

    async def _serve(self, name: str, post: _Post) -> None:
        try:
            while not self._closing:
                starts, post.starts = post.starts, []
                cancelled, post.cancelled = post.cancelled, []
                full = len(self._placement.running[name]) >= self._config.at_once
                seconds = _FULL_TURN if full else _TURN
                ended = await post.handle.call("turn", starts, cancelled, seconds, seconds=seconds + _HUNG)
                for one in msgspec.convert(ended, list[Ended]):
                    if one.number in self._orders:  # else it was cancelled meanwhile
                        self._placement.ended(one.number, one.failed)
                        self._settle(one.number, one)
                self._place()
                if not (self._placement.running[name] or post.cancelled):
                    post.woken.clear()
                await post.woken.wait()
            await post.handle.call("close", seconds=_CLOSE)
        except (FaultError, BackendError) as error:
            if not self._closing:
                self._lost(name, str(error))
                await post.handle.close()

    def _lost(self, name: str, why: str) -> None:
        del self._posts[name]
        lost = self._placement.lost(name)
        self._event("worker lost", name, f"{why}; {len(lost)} attempts were on it")
        for number, convicted in lost.items():
            fault = FaultError("worker-lost", name, why)
            if convicted:
                detail = f"workers died under this task until it was alone on one, and that died too: {why}"
                fault = FaultError("environment-broken", name, detail)
                self._event("diagnosed", self._orders[number][0], detail)
            self._settle(number, fault)
        self._hire()
        self._place()

    def _hire(self) -> None:
        """Start the workers that are missing, in the background: a cluster may have no room for them for a while."""
        while not self._closing and len(self._posts) + len(self._hiring) < self._config.count:
            hiring = asyncio.create_task(self._hired(f"worker-{next(self._names)}"))
            self._hiring.add(hiring)
            hiring.add_done_callback(self._hiring.discard)

    async def _hired(self, name: str) -> Exception | None:
        try:
            setup = asdict(replace(self._setup, name=name, at_once=self._config.at_once))
            handle = await self._executor.spawn(f"{worker.__name__}:Worker", setup, self._config.resources)
        except (FaultError, TemperError) as error:
            self._event("worker missing", name, str(error))
            if not self._posts and len(self._hiring) == 1:  # nobody is left, and nobody else will come
                for number in list(self._placement.waiting):
                    self._placement.dropped(number)
                    self._settle(number, FaultError("worker-lost", "scheduling.executors", str(error)))
            return error
        self._event("worker ready", name)
        self._posts[name] = _Post(handle)
        self._placement.joined(name)
        serving = asyncio.create_task(self._serve(name, self._posts[name]))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        self._place()
        return None


def lost(order: Order, error: FaultError, when: float) -> Trace:
    """The trace of an attempt that never came back."""
    fault = error.fault
    events = (told(order.trace, fault.where, fault.detail, when),)
    task, seed = order.task, order.params.seed
    return Trace(id=order.trace, task=task.id, domain=task.domain, seed=seed, stop="fault", events=events, fault=fault)
