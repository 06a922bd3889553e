"""Workers in this process: for tests, and for what releases the interpreter lock. A call is a thread of its own.

A thread cannot be killed: past its limit it is left alone, and its worker takes no more calls. Async methods run on the
owner's event loop, and end at their limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

from temper.scheduling.executors.hosted import Channel, Hosted, Workers

GIVES = ("cpus",)  # resources of a worker


def create(config: None = None) -> Workers:
    return Workers(_open, GIVES)


async def _open(resources: Mapping[str, float]) -> Channel:
    """`resources`: cpus, which all workers here share."""
    return _Threads()


class _Threads:
    """A `Channel`. `_answer` is touched on the owner's loop only."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._hosted = Hosted(self._drive)
        self._answer: asyncio.Future[bytes] = self._loop.create_future()
        self._coroutine: Future[Any] = Future()

    async def exchange(self, frame: bytes) -> bytes:
        self._answer = self._loop.create_future()
        threading.Thread(target=self._work, args=(frame, self._answer), daemon=True).start()
        return await self._answer

    async def end(self) -> str:
        self._coroutine.cancel()
        _settle(self._answer, None)
        return ""

    def _work(self, frame: bytes, answer: asyncio.Future[bytes]) -> None:
        content = None
        with contextlib.suppress(SystemExit):  # a process would have ended here
            content = self._hosted.answer(frame)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(_settle, answer, content)

    def _drive(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        self._coroutine = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return self._coroutine.result()


def _settle(answer: asyncio.Future[bytes], content: bytes | None) -> None:
    if not answer.done():
        answer.set_exception(EOFError()) if content is None else answer.set_result(content)
