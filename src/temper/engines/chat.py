"""A `ChatModel` out of an `Engine` and a `ChatFormat`: the one way from messages to sampled tokens with their facts.

Tokens are never re-made: a reply continues the very tokens of `history` when its messages are a prefix of what is
asked, and only what is new is rendered. Where history was rewritten, a new branch opens at the root.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import count
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from temper.core.protocols import Chunk, Engine, Reply, SamplingParams
from temper.core.task import Message, ToolSpec
from temper.core.trace import Segment
from temper.models.chat import ChatFormat


class Drawn(Struct, frozen=True, eq=False):
    """What was sampled after one prompt. Prefill seconds hold the time in the engine's queue, too."""

    ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    stop: Literal["stop", "length", "context", "aborted"]
    prefill_seconds: float
    decode_seconds: float


class TokenChat:
    """`draw` samples what follows a prompt. `name` is the policy's name in every segment."""

    def __init__(
        self, draw: Callable[[np.ndarray, SamplingParams], Awaitable[Drawn]], format: ChatFormat, name: str = "policy"
    ) -> None:
        self.name = name
        self._draw = draw
        self._format = format

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SamplingParams,
        history: Sequence[Segment] = (),
    ) -> Reply:
        history, given = given_since(self._format, messages, tools, history)
        context = np.concatenate([segment.ids for segment in (*history, *given)])
        drawn = await self._draw(context, replace(params, stop_ids=(*params.stop_ids, *self._format.stop_ids)))
        message = self._format.parse(drawn.ids, tools)
        parent = len(history) + len(given) - 1
        said = sampled(message, drawn.ids, drawn.logprobs, drawn.versions, parent, self.name)
        segments = (*given, said) if len(drawn.ids) else given
        return Reply(message, segments, drawn.stop, drawn.prefill_seconds, drawn.decode_seconds)


class EngineChat(TokenChat):
    """Over an engine of this process."""

    def __init__(self, engine: Engine, format: ChatFormat, name: str = "policy") -> None:
        requests = count()

        def draw(context: np.ndarray, params: SamplingParams) -> Awaitable[Drawn]:
            return sample(engine, context, params, f"{name}-{id(self):x}-{next(requests)}")

        super().__init__(draw, format, name)


async def sample(engine: Engine, context: np.ndarray, params: SamplingParams, request: str) -> Drawn:
    """All that the engine gives. Leaving early aborts the request there."""
    chunks: list[Chunk] = []
    started, first = time.perf_counter(), 0.0
    async with aclosing(engine.generate(context, params, request)) as stream:
        try:
            async for chunk in stream:
                first = first or time.perf_counter()
                chunks.append(chunk)
        except BaseException:
            engine.abort(request)
            raise
    ended = time.perf_counter()
    if not chunks:
        nothing = np.empty(0)
        chunks, first = [Chunk(nothing, nothing, nothing, "aborted")], ended
    return Drawn(
        np.concatenate([chunk.ids for chunk in chunks]).astype(np.int32),
        np.concatenate([chunk.logprobs for chunk in chunks]).astype(np.float32),
        np.concatenate([chunk.versions for chunk in chunks]).astype(np.int32),
        chunks[-1].stop or "stop",
        prefill_seconds=first - started,
        decode_seconds=ended - first,
    )


def sampled(
    message: Message, ids: np.ndarray, logprobs: np.ndarray, versions: np.ndarray, parent: int, policy: str
) -> Segment:
    """The segment of what a policy sampled."""
    return Segment(
        parent=parent,
        author="policy",
        messages=(message,),
        ids=ids.astype(np.int32),
        trainable=np.ones(len(ids), bool),
        logprobs=logprobs.astype(np.float32),
        versions=versions.astype(np.int32),
        policy=policy,
    )


def given_since(
    format: ChatFormat, messages: Sequence[Message], tools: Sequence[ToolSpec], history: Sequence[Segment]
) -> tuple[Sequence[Segment], tuple[Segment, ...]]:
    """The part of `history` that can be continued (all or nothing), and the segment of what was given since.

    There is no such segment when history ends with a prompt and nothing was said since: a fork point.
    """
    added = added_since(messages, history)
    if history and added is not None:
        if history[-1].author == "policy":
            ids = format.render(added, tools, after=history[-1].ids)
            return history, (Segment.given(added, ids, parent=len(history) - 1),)
        if not added:
            return history, ()
    return (), (Segment.given(tuple(messages), format.render(messages, tools)),)


def added_since(messages: Sequence[Message], history: Sequence[Segment]) -> tuple[Message, ...] | None:
    """The messages that `history` does not hold yet; None when history is no prefix of `messages`."""
    known = [message for segment in history for message in segment.messages]
    if len(known) > len(messages) or any(a is not b and a != b for a, b in zip(known, messages, strict=False)):
        return None
    return tuple(messages[len(known) :])
