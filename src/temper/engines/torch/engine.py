"""The asynchronous shell around `Runner`: requests in, tokens out, publishes between two steps.

Several policies may be served over the one base: `add` gives an `Engine` for one more adapter, whose requests share
steps, slots and cache room with the others', and whose publishes concern its own alone.

The runner is touched by one thread at a time: by the executor during a step, by the event loop between two. A failure
inside a step reaches every waiter as FaultError("engine-lost"), or as CorruptError where weights are damaged, which no
new try mends; the engine takes no more work.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from temper.core.blame import FaultError
from temper.core.errors import ConfigError, CorruptError
from temper.core.protocols import Chunk, SamplingParams
from temper.engines.torch import Config
from temper.engines.torch.runner import Runner, Stats
from temper.engines.torch.scheduler import Request
from temper.models.lora import LoraConfig
from temper.models.policy import Policy

T = TypeVar("T")
Lost = FaultError | CorruptError  # why the engine takes no more work


class TorchEngine:
    """`core.protocols.Engine` over a `Policy`. Its loop is a task that lives while there is work.

    `policy` names another one than the first, which is "".
    """

    def __init__(self, config: Config, policy: Policy, executor: Executor | None) -> None:
        self._runner = Runner(config, policy)
        self._own = ThreadPoolExecutor(1, thread_name_prefix="temper-engine") if executor is None else None
        self._executor: Executor = executor or self._own  # type: ignore[assignment]
        self._streams: dict[str, tuple[Request, asyncio.Queue[Chunk | Lost]]] = {}
        self._arrived: list[Request] = []
        self._aborted: set[str] = set()
        self._calls: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []  # run on the executor between steps
        self._numbers = itertools.count()
        self._task: asyncio.Task[None] | None = None
        self._lost: Lost | None = None

    @property
    def version(self) -> int:
        return self.versions[""]

    @property
    def versions(self) -> Mapping[str, int]:
        """By policy."""
        return self._runner.versions

    def stats(self) -> Stats:
        """Counters since the start, and how things stand now."""
        return self._runner.snapshot()

    def busy(self) -> Mapping[str, float]:
        """See `core.protocols.Metered`."""
        stats = self._runner.stats
        return {"prefill": stats.prefill_seconds, "decode": stats.decode_seconds}

    async def generate(
        self, ids: np.ndarray, params: SamplingParams, request: str = "", policy: str = ""
    ) -> AsyncIterator[Chunk]:
        """Continue `ids`, a chunk a step. Leaving the iteration early aborts.

        Raises ConfigError, FaultError, CorruptError.
        """
        name = request or f"request-{next(self._numbers)}"
        if name in self._streams:
            raise ConfigError(f"a request named {name!r} is already running: names must be unique")
        prompt = np.asarray(ids, np.int32)
        self._runner.check(prompt, params, policy)
        context = self._runner.policy.base.context
        if params.max_tokens < 1 or len(prompt) >= context:
            yield _chunk(np.empty(0, np.int32), [], [], "length" if params.max_tokens < 1 else "context")
            return
        queue: asyncio.Queue[Chunk | Lost] = asyncio.Queue()
        work = Request(name, prompt, params, context, policy)
        self._streams[name] = (work, queue)
        self._arrived.append(work)
        stop = ""
        try:
            self._wake()
            while not stop:
                chunk = await queue.get()
                if isinstance(chunk, FaultError):
                    raise FaultError(chunk.fault.what, chunk.fault.where, chunk.fault.detail) from chunk
                if isinstance(chunk, CorruptError):
                    raise CorruptError(str(chunk)) from chunk
                stop = chunk.stop
                yield chunk
        finally:
            if not stop:
                self.abort(name)

    async def score(self, ids: np.ndarray, top_k: int = 0, policy: str = "") -> tuple[np.ndarray, Any]:
        """Log-prob of each token (T,), 0 for the first; with top_k, (ids, log-probs), each (T - 1, top_k)."""
        tokens = np.asarray(ids, np.int32)
        self._runner.check(tokens, SamplingParams(max_tokens=0), policy)
        if len(tokens) > (context := self._runner.policy.base.context):
            raise ConfigError(f"expected at most {context} tokens to score, the model's window, got {len(tokens)}")
        return await self._between(lambda: self._runner.score(tokens, top_k, policy=policy))

    def abort(self, request: str) -> None:
        """End a request before the next step; its stream gets a last chunk. Unknown names are ignored."""
        if request in self._streams:
            self._aborted.add(request)

    async def publish(
        self, weights: Mapping[str, Any], version: int, mode: str = "recompute", policy: str = ""
    ) -> None:
        """See `core.protocols.Engine`. Returns when the weights are in.

        Raises ConfigError and CorruptError for weights that it does not take, FaultError.
        """
        if mode not in ("recompute", "keep"):
            raise ConfigError(f"expected mode 'recompute' or 'keep', got {mode!r}")

        def take() -> None:
            self._runner.named(policy)
            if version <= self.versions[policy]:
                raise ConfigError(f"expected a version above {self.versions[policy]}, got {version}")
            self._runner.publish(weights, version, mode, policy)

        await self._between(take)

    async def add(self, name: str, adapter: LoraConfig) -> Served:
        """Serve one more policy: the base's until its first publish. Raises ConfigError, FaultError."""
        await self._between(lambda: self._runner.add(name, Policy(self._runner.policy.base, adapter)))
        return Served(self, name)

    async def leave(self, policy: str) -> None:
        """Abort what is left of an added policy, and forget it; nothing happens where it left before."""
        for name, (work, _) in self._streams.items():
            if work.policy == policy:
                self.abort(name)
        await self._between(lambda: self._runner.remove(policy))

    def pin(self, ids: np.ndarray, policy: str = "") -> str:
        """Keep a prefix from eviction from now on, or from when it is first computed, also after publishes."""
        return self._runner.tree.pin(np.asarray(ids, np.int32), policy)

    def release(self, handle: str) -> None:
        self._runner.tree.release(handle)

    async def close(self) -> None:
        """Abort everything and stop. Streams get their last chunk."""
        for name in list(self._streams):
            self.abort(name)
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._own is not None:
            self._own.shutdown()

    async def _between(self, call: Callable[[], T]) -> T:
        """Run on the executor between two steps."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.append((call, future))
        self._wake()
        return await future

    def _wake(self) -> None:
        if self._lost is not None:
            self._fail(self._lost)
        elif self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="temper-engine")

    async def _run(self) -> None:
        """Steps while there is work."""
        run = asyncio.get_running_loop().run_in_executor
        try:
            while self._settle():
                if self._calls:
                    call, future = self._calls.pop(0)
                    await self._answer(run(self._executor, call), future)
                else:
                    self._deliver(await run(self._executor, self._runner.step))
        except Exception as error:  # the boundary of the engine: whatever broke, every waiter must hear of it
            if isinstance(error, CorruptError):
                self._lost = error
            else:
                self._lost = FaultError("engine-lost", "engines.torch", f"{type(error).__name__}: {error}")
                self._lost.__cause__ = error
            self._fail(self._lost)

    async def _answer(self, running: asyncio.Future[Any], future: asyncio.Future[Any]) -> None:
        """Pass on a call's result; what the caller gave wrong is theirs, anything else ends the engine."""
        try:
            result = await running
        except (ConfigError, CorruptError) as error:
            if not future.done():
                future.set_exception(error)
        except BaseException:
            self._calls.append((lambda: None, future))  # to be failed with the rest
            raise
        else:
            if not future.done():
                future.set_result(result)

    def _settle(self) -> bool:
        """Take in what came since the last step; is there anything to do?"""
        for work in self._arrived:
            self._runner.scheduler.add(work)
            if work.policy not in self.versions:  # it was closed since
                self.abort(work.name)
        self._arrived.clear()
        for name in self._aborted:
            work, queue = self._streams.pop(name, (None, None))
            if work is not None and queue is not None:
                with torch.inference_mode():
                    self._runner.finish(work, "aborted")
                queue.put_nowait(_chunk(np.empty(0, np.int32), [], [], "aborted"))
        self._aborted.clear()
        scheduler = self._runner.scheduler
        return bool(self._calls or scheduler.running or scheduler.waiting)

    def _deliver(self, sampled: list[Request]) -> None:
        for work in sampled:
            chunk = _chunk(work.tokens[-1:].copy(), work.logprobs[-1:], work.versions[-1:], work.stop)
            entry = self._streams.pop(work.name, None) if work.stop else self._streams.get(work.name)
            if entry is not None:
                entry[1].put_nowait(chunk)

    def _fail(self, lost: Lost) -> None:
        for _, queue in self._streams.values():
            queue.put_nowait(lost)
        for _, future in self._calls:
            if not future.done():
                future.set_exception(lost)
        self._streams.clear()
        self._arrived.clear()
        self._calls.clear()


class Served:
    """`core.protocols.Engine`: one policy that was added to an engine. Closing it leaves the others running."""

    def __init__(self, engine: TorchEngine, policy: str) -> None:
        self._engine, self.policy = engine, policy
        self.generate = partial(engine.generate, policy=policy)
        self.score = partial(engine.score, policy=policy)
        self.publish = partial(engine.publish, policy=policy)
        self.pin = partial(engine.pin, policy=policy)
        self.abort, self.release = engine.abort, engine.release
        self.close = partial(engine.leave, policy)

    @property
    def version(self) -> int:
        return self._engine.versions[self.policy]


def _chunk(ids: np.ndarray, logprobs: list[float], versions: list[int], stop: Any) -> Chunk:
    return Chunk(ids, np.array(logprobs, np.float32), np.array(versions, np.int32), stop)
