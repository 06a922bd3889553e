"""An environment worker: whole attempts, with sandboxes and verifiers of its own, in a worker of any executor.

What answers is the domain's own gold, a model that can be reached from anywhere (an endpoint, a script), or the policy:
then the worker renders and parses, and asks the driver's engine for the tokens between, which come and are kept as they
were sampled. Worker and driver (`farm`) exchange encoded records in turns that the driver begins, so that no worker
opens a connection, and none needs a key. What runs where, and what is tried again, is the driver's decision; this
module loads no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace
from tokenizers import Tokenizer

from temper.core import registry
from temper.core.blame import Fault, FaultError
from temper.core.protocols import ChatModel, SamplingParams
from temper.core.trace import Event, Trace, Verdict
from temper.engines import scripted
from temper.engines.chat import Drawn, EngineChat, TokenChat
from temper.engines.scripted import ScriptedChat
from temper.runs.arena import Arena, Order, Plan
from temper.runs.endpoints import Conversation, Endpoints
from temper.scheduling.placement import told
from temper.store import codec

T = TypeVar("T")


class Setup(Struct, frozen=True, kw_only=True):
    """What a worker is made of. tokenizer: its JSON. chat, model: tables as in a recipe. at_once: its attempts."""

    plan: Plan
    tokenizer: str
    chat: dict[str, Any]
    model: dict[str, Any] | None = None
    at_once: int = 1
    name: str = ""


class Ended(Struct, frozen=True, tag=True):
    """An attempt's trace and verdicts, encoded, or a domain's `error`. `failed`: through no doing of the policy."""

    number: int
    trace: bytes = b""
    verdicts: bytes = b""
    failed: bool = False
    error: str = ""


class Asked(Struct, frozen=True, tag=True):
    """An attempt waits for tokens of the driver's engine. prompt: ids and `SamplingParams`, encoded."""

    number: int
    ask: int
    prompt: bytes


class Turned(Struct, frozen=True, tag=True):
    """A conversation went on after a turn. said: `rollouts.resumed.Said`, encoded."""

    number: int
    said: bytes


class Answer(Struct, frozen=True):
    """To an `Asked`; exactly one of the two is there."""

    ask: int
    drawn: Drawn | None = None
    fault: Fault | None = None


class Worker:
    """Lives in an executor's worker. Its attempts share an event loop in a thread, which goes on between the calls."""

    def __init__(self, config: dict[str, Any]) -> None:
        setup = msgspec.convert(config, Setup)
        self._name = setup.name
        module, settings = registry.configure("models.chat", setup.chat)
        tokenizer = Tokenizer.from_str(setup.tokenizer)
        self._chat, self._vocabulary = module.create(settings, tokenizer), tokenizer.get_vocab_size()
        self._arena = Arena(setup.plan)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._asks, self._asked = itertools.count(), dict[int, asyncio.Future[Answer]]()
        self._told: list[Ended | Asked | Turned] = []
        self._news = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="attempts", daemon=True)
        self._thread.start()
        self._given = self._on_loop(self._opened(setup.model, setup.at_once))

    def turn(
        self, starts: list[list[Any]], cancelled: list[int], answers: list[bytes], seconds: float
    ) -> list[Ended | Asked | Turned]:
        """Take in what is new, and tell what is new here, as soon as one ended or asked, or after `seconds`.

        starts: number, why here, the driver's clock, and the encoded order of each.
        """
        return self._on_loop(self._turn(starts, cancelled, answers, seconds))

    def close(self) -> None:
        self._on_loop(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _opened(self, model: dict[str, Any] | None, at_once: int) -> ChatModel | Endpoints | None:
        await self._arena.__aenter__()
        if model is None:
            return None
        module, settings = registry.configure("engines", model)
        if isinstance(several := getattr(settings, "base_url", None), tuple):  # another one is the second try
            one = partial(replace, settings, retries=min(1, settings.retries))
            return Endpoints({url: module.create(one(base_url=url)) for url in several}, at_once)
        if isinstance(settings, scripted.Config):
            settings.check(self._vocabulary)
        made = module.create(settings)
        return made if hasattr(made, "reply") else EngineChat(made, self._chat, name=model["kind"])

    async def _turn(
        self, starts: list[list[Any]], cancelled: list[int], answers: list[bytes], seconds: float
    ) -> list[Ended | Asked | Turned]:
        for number, why, when, order in starts:
            work = self._attempt(number, why, when - time.monotonic(), codec.decode(order, Order))
            self._running[number] = asyncio.create_task(work)
            self._running[number].add_done_callback(lambda _, number=number: self._running.pop(number))
        for number in self._running.keys() & cancelled:
            self._running[number].cancel()
        for answer in (codec.decode(content, Answer) for content in answers):
            if (waits := self._asked.get(answer.ask)) and not waits.done():
                waits.set_result(answer)
        if self._running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
        self._news.clear()
        told, self._told = self._told, []
        return told

    async def _attempt(self, number: int, why: str, offset: float, order: Order) -> None:
        def clock() -> float:
            return offset + time.monotonic()

        events = [told(order.trace, self._name, why, clock())]
        try:
            trace, verdicts = await self._played(number, order, events, clock)
        except Exception as error:  # a boundary: it is told to whoever asked for this attempt, as it would be here
            ended = Ended(number, error="".join(traceback.format_exception(error)[-3:]))
        else:
            trace = replace(trace, events=(*events, *trace.events))
            failed = all(verdict.status == "infra" for verdict in verdicts)
            ended = Ended(number, codec.encode(trace), codec.encode(verdicts), failed)
        self._told.append(ended)
        self._news.set()

    async def _played(
        self, number: int, order: Order, events: list[Event], clock: Callable[[], float]
    ) -> tuple[Trace, tuple[Verdict, ...]]:
        with contextlib.ExitStack() as stack:
            if order.model == "gold":
                model = ScriptedChat(self._arena.domains[order.task.domain].gold(order.task), self._chat)
            elif order.model == "policy":
                model = TokenChat(partial(self._drawn, number), self._chat)
            elif isinstance(self._given, Endpoints):
                conversation = Conversation(self._given, order.trace, events, clock)
                model = stack.enter_context(contextlib.closing(conversation))
            else:
                assert self._given is not None
                model = self._given
            return await self._arena.play(
                order, model, clock, lambda said: self._told.append(Turned(number, codec.encode(said)))
            )

    async def _drawn(self, number: int, ids: np.ndarray, params: SamplingParams) -> Drawn:
        """What the driver's engine samples after these tokens. Raises the FaultError that it raised."""
        ask = next(self._asks)
        self._asked[ask] = asyncio.get_running_loop().create_future()
        self._told.append(Asked(number, ask, codec.encode((ids, params))))
        self._news.set()
        try:
            answer = await self._asked[ask]
        finally:
            del self._asked[ask]
        if answer.fault:
            raise FaultError(*astuple(answer.fault))
        assert answer.drawn
        return answer.drawn

    async def _close(self) -> None:
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._arena.__aexit__(None, None, None)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
