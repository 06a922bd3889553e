"""All of an executor but the way to its workers: handles that bound calls, and the objects that factories made.

    Workers ── spawn ──▶ WorkerHandle ── call ──▶ Channel (a thread, a socket, an actor) ── frame ──▶ Hosted

A frame is msgpack, never pickle, also where nothing is crossed, so that what works in one executor works in all:
arguments and results are plain data; Structs and arrays arrive as `store.codec` writes them.

Calls of one handle run one after the other. A call that passes its limit or is cancelled ends its worker: nothing else
interrupts it.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec

from temper.core.blame import FaultError
from temper.core.errors import BackendError, RefusedError
from temper.store import codec

_START_SECONDS = 600.0  # to import, and to make the object: it may load a model


class Channel(Protocol):
    """The way to a worker."""

    async def exchange(self, frame: bytes) -> bytes:
        """The answer to a frame. Raises EOFError when the worker is gone."""
        ...

    async def end(self) -> str:
        """Make an end of the worker, if it is not at its own; says how it ended. May be called again."""
        ...


class Workers:
    """`core.protocols.Executor` over a function that opens a channel to a new worker.

    `gives`: resources it knows; empty where `open` itself refuses what it cannot give.
    """

    def __init__(
        self, open: Callable[[Mapping[str, float]], Awaitable[Channel]], gives: tuple[str, ...] = ("cpus",)
    ) -> None:
        self._open, self._gives = open, gives
        self._handles: list[WorkerHandle] = []

    async def spawn(self, factory: str, config: Mapping[str, Any], resources: Mapping[str, float]) -> WorkerHandle:
        """Raises RefusedError for other resources, BackendError or FaultError when the object cannot be made."""
        others = [f"{name}={amount:g}" for name, amount in resources.items() if amount and name not in self._gives]
        if self._gives and others:
            raise RefusedError(f"{factory}: this executor gives {', '.join(self._gives)}, and not {', '.join(others)}")
        handle = WorkerHandle(factory, await self._open(resources))
        self._handles.append(handle)
        await handle.start(config)
        return handle

    async def close(self) -> None:
        for handle in self._handles:
            await handle.close()


class WorkerHandle:
    """`core.protocols.Handle`. What a method raises comes as BackendError with a traceback, a FaultError as itself."""

    def __init__(self, factory: str, channel: Channel) -> None:
        self._factory, self._channel = factory, channel
        self._turn = asyncio.Lock()
        self._ended = ""

    async def start(self, config: Mapping[str, Any]) -> None:
        try:
            await self.call("", self._factory, config, seconds=_START_SECONDS)
        except BaseException:
            await self.close()
            raise

    async def call(self, method: str, *args: Any, seconds: float) -> Any:
        """`seconds` count from its turn. After the worker's end every call raises FaultError("worker-lost")."""
        frame = codec.encode((method, args))
        name = method or "its start"
        async with self._turn:
            if self._ended:
                raise FaultError("worker-lost", self._factory, self._ended)
            try:
                async with asyncio.timeout(seconds):
                    kind, value = msgspec.msgpack.decode(await self._channel.exchange(frame))
            except TimeoutError:
                await self._end(f"{name} took more than {seconds:g} s")
                raise FaultError("wait-limit", self._factory, self._ended) from None
            except EOFError:
                await self._end(f"the worker was gone during {name}")
                raise FaultError("worker-lost", self._factory, self._ended) from None
            except asyncio.CancelledError:
                await self._end(f"{name} was cancelled")
                raise
        if kind == "fault":
            raise FaultError(*value)
        if kind == "error":
            raise BackendError(f"{self._factory}: {name} failed in its worker:\n{value}")
        return value

    async def close(self) -> None:
        await self._end("it was closed")

    async def _end(self, why: str) -> None:
        first = not self._ended
        self._ended = self._ended or why  # before the wait, so that no other call begins
        how = await self._channel.end()
        if first and how:
            self._ended = f"{why}: {how}"


class Hosted:
    """The object at the far end. `drive` runs a coroutine to its end, for methods that are async."""

    def __init__(self, drive: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._drive = drive
        self._object: Any = None

    def answer(self, frame: bytes) -> bytes:
        """A frame [method, args] in, ["value" | "fault" | "error", content] out. The method "" makes the object."""
        try:
            method, args = msgspec.msgpack.decode(frame)
            value = getattr(self._object, method)(*args) if method else self._make(*args)
            return codec.encode(("value", self._drive(value) if inspect.iscoroutine(value) else value))
        except FaultError as error:
            return codec.encode(("fault", msgspec.structs.astuple(error.fault)))
        except Exception as error:
            return codec.encode(("error", "".join(traceback.format_exception(error)[-3:])))

    def _make(self, factory: str, config: dict[str, Any]) -> None:
        module, _, attribute = factory.partition(":")
        self._object = getattr(importlib.import_module(module), attribute)(config)
