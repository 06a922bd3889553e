"""An environment worker: whole attempts, with sandboxes and verifiers of its own, in a worker of any executor.

It has the domains' gold answers, and one model that can be reached from anywhere (an endpoint, a script). Orders come
as encoded records, and so do traces and verdicts go. What runs where, and what is tried again, is the driver's decision
(`farm`); this module loads no torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import traceback
from collections.abc import Coroutine
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from tokenizers import Tokenizer

from temper.core import registry
from temper.core.protocols import ChatModel, SamplingParams
from temper.core.task import Task
from temper.engines import scripted
from temper.engines.chat import EngineChat
from temper.engines.scripted import ScriptedChat
from temper.runs.arena import Arena, Plan
from temper.runs.endpoints import Conversation, Endpoints
from temper.scheduling.placement import told
from temper.store import codec

Far = Literal["gold", "given"]  # the domain's own answer, or the model of `Setup`

T = TypeVar("T")


class Setup(Struct, frozen=True, kw_only=True):
    """What a worker is made of. tokenizer: its JSON. chat, model: tables as in a recipe. at_once: its attempts."""

    plan: Plan
    tokenizer: str
    chat: dict[str, Any]
    model: dict[str, Any] | None = None
    at_once: int = 1
    name: str = ""


class Order(Struct, frozen=True, kw_only=True):
    """One attempt; see `Arena.attempt`."""

    trace: str
    task: Task
    model: Far
    params: SamplingParams
    origin: Task | None = None


class Ended(Struct, frozen=True):
    """An attempt's trace and verdict, encoded, or the `error` of a domain. `failed`: through no doing of the policy."""

    number: int
    trace: bytes = b""
    verdict: bytes = b""
    failed: bool = False
    error: str = ""


class Worker:
    """Lives in an executor's worker. Its attempts share an event loop in a thread, which goes on between the calls."""

    def __init__(self, config: dict[str, Any]) -> None:
        setup = msgspec.convert(config, Setup)
        self._name = setup.name
        module, settings = registry.configure("models.chat", setup.chat)
        tokenizer = Tokenizer.from_str(setup.tokenizer)
        self._chat, self._vocabulary = module.create(settings, tokenizer), tokenizer.get_vocab_size()
        self._arena = Arena(setup.plan)
        self._running: dict[asyncio.Task[Ended], int] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="attempts", daemon=True)
        self._thread.start()
        self._given = self._on_loop(self._opened(setup.model, setup.at_once))

    def turn(self, starts: list[list[Any]], cancelled: list[int], seconds: float) -> list[Ended]:
        """Take up new attempts, and give those that have ended, as soon as there is one or after `seconds`.

        starts: number, why here, the driver's clock, and the encoded order of each.
        """
        return self._on_loop(self._turn(starts, cancelled, seconds))

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

    async def _turn(self, starts: list[list[Any]], cancelled: list[int], seconds: float) -> list[Ended]:
        for number, why, when, order in starts:
            work = self._ended(number, why, when - time.monotonic(), codec.decode(order, Order))
            self._running[asyncio.create_task(work)] = number
        for task, number in self._running.items():
            if number in cancelled:
                task.cancel()
        if not self._running:
            return []
        done, _ = await asyncio.wait(self._running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del self._running[task]
        return [task.result() for task in done if not task.cancelled()]

    async def _ended(self, number: int, why: str, offset: float, order: Order) -> Ended:
        def clock() -> float:
            return offset + time.monotonic()

        task, model = order.task, self._given
        events = [told(order.trace, self._name, why, clock())]
        try:
            with contextlib.ExitStack() as stack:
                if model is None or order.model == "gold":
                    model = ScriptedChat(self._arena.domains[task.domain].gold(task), self._chat)
                elif isinstance(model, Endpoints):
                    model = stack.enter_context(contextlib.closing(Conversation(model, order.trace, events, clock)))
                trace, verdict = await self._arena.attempt(task, model, order.params, order.trace, clock, order.origin)
        except Exception as error:  # a boundary: it is told to whoever asked for this attempt, as it would be here
            return Ended(number, error="".join(traceback.format_exception(error)[-3:]))
        trace = replace(trace, events=(*events, *trace.events))
        return Ended(number, codec.encode(trace), codec.encode(verdict), verdict.status == "infra")

    async def _close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._arena.__aexit__(None, None, None)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
