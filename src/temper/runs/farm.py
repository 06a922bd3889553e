"""Attempts on environment workers: the driver's side of them.

    Workshop.attempt ──▶ Farm ── turn: orders and tokens out, what ended or asks for tokens back ──▶ `worker`

What runs where is `scheduling.placement`'s decision; workers that died are started anew, and an attempt whose worker
died is a fault: whoever asked for it tries again. The policy's engine lives in the driver, beside the trainer: what an
attempt asks of it is sampled there, and aborted with the attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Sized
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from temper.core import registry
from temper.core.blame import FaultError, boundary
from temper.core.errors import BackendError, ConfigError, CorruptError, RefusedError, TemperError
from temper.core.protocols import Engine, Handle, SamplingParams
from temper.core.trace import Trace
from temper.engines.chat import sample
from temper.runs import worker
from temper.runs.arena import Order
from temper.runs.worker import Answer, Asked, Ended, Setup, Turned
from temper.scheduling.placement import Placement, told
from temper.store import codec

_TURN, _FULL_TURN = 0.2, 1.0  # seconds a turn waits for news, with and without room for new orders
_SAMPLING_TURN = 0.02  # the same while the engine works for the worker: its tokens go out with the next turn
_HUNG = 120.0  # seconds without an answer after which a worker counts as lost
_CLOSE = 60.0


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """executor: a table with `kind`, or the kind. at_once: attempts of one worker. resources: of one worker.

    model: an engine's table (`kind` = `openai`, `scripted`); then that model is evaluated in place of the policy, and
    nothing is trained. Each worker divides its own episodes among several endpoints of it (`runs.endpoints`).
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
    """A worker, as the driver sees it: what it is to be told in the next turn, and what is sampled for it."""

    handle: Handle
    starts: list[tuple[int, str, float, bytes]] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)
    sampling: set[asyncio.Task[None]] = field(default_factory=set)
    woken: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class _Attempt:
    trace: str
    order: bytes
    turned: Callable[[msgspec.Raw], None]
    future: asyncio.Future[Ended]
    sampling: set[asyncio.Task[None]] = field(default_factory=set)


class Farm:
    """`async with Farm(...) as farm: trace, verdicts = await farm.attempt(order)`. `event` is told what workers do.

    `engine`: of the policy, for attempts that it plays.
    """

    def __init__(
        self,
        config: Config,
        setup: Setup,
        event: Callable[..., None],
        clock: Callable[[], float],
        engine: Engine | None = None,
    ) -> None:
        module, settings = registry.configure("scheduling.executors", config.executor)
        self._executor = module.create(settings)
        self._config, self._setup, self._event, self._clock, self._engine = config, setup, event, clock, engine
        self._placement = Placement(config.at_once)
        self._numbers, self._names = itertools.count(), itertools.count(1)
        self._attempts: dict[int, _Attempt] = {}
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
        for number in self._attempts:
            self._settle(number, FaultError("worker-lost", "runs.farm", "the workers were closed"))
        await self._executor.close()

    async def attempt(
        self, order: Order, turned: Callable[[msgspec.Raw], None] = lambda said: None
    ) -> tuple[bytes, bytes]:
        """Trace and verdicts, as `store.codec` writes them, and so comes each `Said` that `turned` hears of.

        Raises FaultError with the worker's name in `where` when it was lost, BackendError for what a domain raised,
        CorruptError for weights that the engine does not take.
        """
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()
        attempt = self._attempts[number] = _Attempt(order.trace, codec.encode(order), turned, future)
        self._placement.asked(number, order.task.id)
        self._hire()
        self._place()
        try:
            ended = await future
        except (asyncio.CancelledError, CorruptError):
            self._drop(number)
            raise
        finally:
            del self._attempts[number]
            for sampling in attempt.sampling:
                sampling.cancel()
        if ended.error:
            raise BackendError(f"attempt {order.trace} failed in its worker:\n{ended.error}")
        return ended.trace, ended.verdicts

    def _place(self) -> None:
        while start := self._placement.next():
            post = self._posts[start.worker]
            post.starts.append((start.attempt, start.why, self._clock(), self._attempts[start.attempt].order))
            post.woken.set()

    def _drop(self, number: int) -> None:
        if post := self._posts.get(self._placement.dropped(number)):
            post.cancelled.append(number)
            post.woken.set()
        self._place()

    def _settle(self, number: int, found: Ended | FaultError | CorruptError) -> None:
        future = self._attempts[number].future
        if future.done():
            return  # cancelled just now
        if isinstance(found, Ended):
            future.set_result(found)
        else:
            future.set_exception(found)

    async def _serve(self, name: str, post: _Post) -> None:
        try:
            while not self._closing:
                await self._turn(post, self._placement.running[name])
                self._place()
            await post.handle.call("close", seconds=_CLOSE)
        except (FaultError, BackendError) as error:
            if not self._closing:
                self._lost(name, str(error))
                await post.handle.close()

    async def _turn(self, post: _Post, running: Sized) -> None:
        """Wait until there is something to say, or something may be heard; say it, and hear."""
        if len(post.sampling) >= len(running) and not (post.starts or post.cancelled or post.answers):
            post.woken.clear()  # all that run there, if any, wait for the engine
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TURN if running else None):
                    await post.woken.wait()
        starts, post.starts = post.starts, []
        cancelled, post.cancelled = post.cancelled, []
        answers, post.answers = post.answers, []
        seconds = _SAMPLING_TURN if post.sampling else _FULL_TURN if len(running) >= self._config.at_once else _TURN
        told = await post.handle.call("turn", starts, cancelled, answers, seconds, seconds=seconds + _HUNG)
        for one in msgspec.convert(told, list[Ended | Asked | Turned]):
            if attempt := self._attempts.get(one.number):  # else it was cancelled meanwhile
                self._hear(one, attempt, post)

    def _hear(self, told: Ended | Asked | Turned, attempt: _Attempt, post: _Post) -> None:
        if isinstance(told, Ended):
            self._placement.ended(told.number, told.failed)
            self._settle(told.number, told)
        elif isinstance(told, Turned):
            attempt.turned(msgspec.Raw(told.said))
        else:
            sampling = asyncio.create_task(self._sampled(told, attempt, post))
            for those in (attempt.sampling, post.sampling):
                those.add(sampling)
                sampling.add_done_callback(those.discard)

    async def _sampled(self, asked: Asked, attempt: _Attempt, post: _Post) -> None:
        """What the engine samples goes out with the post's next turn."""
        assert self._engine
        ids, params = codec.decode(asked.prompt, tuple[np.ndarray, SamplingParams])
        try:
            with boundary("engine-lost", "engines.policy"):
                drawn = await sample(self._engine, ids, params, f"{attempt.trace}:{asked.number}:{asked.ask}")
            answer = Answer(asked.ask, drawn)
        except FaultError as error:
            answer = Answer(asked.ask, fault=error.fault)
        except CorruptError as error:
            self._settle(asked.number, error)
            return
        post.answers.append(codec.encode(answer))
        post.woken.set()

    def _lost(self, name: str, why: str) -> None:
        del self._posts[name]
        lost = self._placement.lost(name)
        self._event("worker lost", name, f"{why}; {len(lost)} attempts were on it")
        for number, convicted in lost.items():
            fault = FaultError("worker-lost", name, why)
            if convicted:
                detail = f"workers died under this task until it was alone on one, and that died too: {why}"
                fault = FaultError("environment-broken", name, detail)
                self._event("diagnosed", self._attempts[number].trace, detail)
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
