"""Engines and chat models that say what they are told: tests, replays, and gold answers as demonstrations.

`ScriptedEngine` plays token sequences; `ScriptedChat` plays assistant messages, with the tokens that a policy would
have sampled for them (trainable, log-prob 0, version 0). Neither has weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.errors import ConfigError
from temper.core.protocols import Chunk, Reply, SamplingParams
from temper.core.task import Message, ToolSpec
from temper.core.trace import Segment
from temper.engines.chat import given_since, sampled
from temper.models.chat import ChatFormat


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`sequences` answer the requests in turn, over and over."""

    sequences: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not self.sequences or not all(self.sequences):
            raise ConfigError("scripted: expected sequences of one token or more, got an empty one, or none")

    def check(self, vocabulary: int) -> None:
        """Raises ConfigError for ids that a tokenizer of so many tokens does not have."""
        if odd := [token for sequence in self.sequences for token in sequence if not 0 <= token < vocabulary]:
            raise ConfigError(f"scripted: expected token ids in [0, {vocabulary}), got {odd[0]}; see its tokenizer")


def create(config: Config, **model: object) -> ScriptedEngine:
    """`model` is what other engines are given (base, adapter, executor) and has no meaning here."""
    turns = cycle(config.sequences)
    return ScriptedEngine(lambda ids, params: next(turns))


class ScriptedEngine:
    """`core.protocols.Engine` that asks `script(ids, params)` for the continuation, and gives a token a step.

    It knows token ids and no text, so that stop strings do not end it; the script's end does.
    """

    def __init__(self, script: Callable[[np.ndarray, SamplingParams], Iterable[int]]) -> None:
        self._script = script
        self._aborted: set[str] = set()
        self._running: set[str] = set()
        self._version = 0

    @property
    def version(self) -> int:
        return self._version

    async def generate(self, ids: np.ndarray, params: SamplingParams, request: str = "") -> AsyncIterator[Chunk]:
        self._running.add(request)
        try:
            for n, token in enumerate(self._script(ids, params), 1):
                await asyncio.sleep(0)
                if request in self._aborted:
                    yield _chunk([], self._version, "aborted")
                    return
                stop = "stop" if token in params.stop_ids else "length" if n == params.max_tokens else ""
                yield _chunk([token], self._version, stop)
                if stop:
                    return
            yield _chunk([], self._version, "stop")
        finally:
            self._running.discard(request)
            self._aborted.discard(request)

    async def score(self, ids: np.ndarray, top_k: int = 0) -> tuple[np.ndarray, Any]:
        return np.zeros(len(ids), np.float32), None

    def abort(self, request: str) -> None:
        if request in self._running:
            self._aborted.add(request)

    async def publish(self, weights: Mapping[str, Any], version: int, mode: str = "recompute") -> None:
        self._version = version

    def pin(self, ids: np.ndarray) -> str:
        return ""

    def release(self, handle: str) -> None:
        pass

    async def close(self) -> None:
        pass


class ScriptedChat:
    """`ChatModel` that says `script`: messages one after the other, or a function of the conversation so far.

    A message longer than the turn's limit is cut as a sampled one would be.
    """

    def __init__(
        self,
        script: Iterable[Message] | Callable[[Sequence[Message]], Message],
        format: ChatFormat,
        name: str = "scripted",
    ) -> None:
        self.name = name
        self._format = format
        self._lines: Iterator[Message] | None = None
        if callable(script):
            self._next = script
        else:
            self._lines = iter(script)
            self._next = self._line

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SamplingParams,
        history: Sequence[Segment] = (),
    ) -> Reply:
        history, given = given_since(self._format, messages, tools, history)
        whole = self._format.write(self._next(messages), tools)
        ids = whole[: params.max_tokens]
        message = self._format.parse(ids, tools)
        parent = len(history) + len(given) - 1
        said = sampled(message, ids, np.zeros(len(ids)), np.zeros(len(ids)), parent, self.name)
        return Reply(message, (*given, said), "stop" if len(ids) == len(whole) else "length")

    def _line(self, messages: Sequence[Message]) -> Message:
        line = next(self._lines or iter(()), None)
        if line is None:
            raise FaultError("engine-lost", f"engines.{self.name}", "the script has no message for this turn")
        return line


def _chunk(ids: Sequence[int], version: int, stop: Any = "") -> Chunk:
    n = len(ids)
    return Chunk(np.asarray(ids, np.int32), np.zeros(n, np.float32), np.full(n, version, np.int32), stop)
