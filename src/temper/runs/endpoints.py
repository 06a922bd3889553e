"""One model behind several endpoints: which of them answers a turn is decided by `scheduling.replicas`.

A conversation stays where its cache lies, and a new one goes where the beginning of its prompt is known, unless that
endpoint is fuller than the emptiest. One that cannot be reached gets no other request until its breaker lets one try;
the turn goes to another endpoint, and no verdict hears of it. Only what fails on all of them is a fault, and its
attempt is made again. Decisions become events of the episode.

A turn is not moved while it is answered: endpoints show no progress that could be kept. Their caches are their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from temper.core.protocols import ChatModel, Reply, SamplingParams
from temper.core.task import Message, ToolSpec
from temper.core.trace import Event, Segment
from temper.engines.openai import Unreachable
from temper.scheduling.replicas import Config, Placed, Replicas, Speed
from temper.scheduling.retry import Breaker

COOL = 15.0  # seconds before an endpoint that could not be reached is tried again
POLL = 0.1  # seconds between two looks for one that takes a turn, while none answers


class Endpoints:
    """`chats`: by address. `at_once`: turns that are asked at once, all of which one endpoint takes where it must."""

    def __init__(self, chats: Mapping[str, ChatModel], at_once: int, cool: float = COOL) -> None:
        self.addresses, self.chats = list(chats), list(chats.values())
        self.at_once, self.replicas = at_once, Replicas(Config(limit=at_once), Speed(), [0.0] * len(chats))
        self.breakers = [Breaker(1, cool) for _ in chats]

    async def place(self, trace: str, prefix: bytes) -> Placed:
        """Where a conversation's next turn is asked, as soon as an endpoint takes it."""
        while True:
            now = time.monotonic()
            self.replicas.tick(now)
            for number, breaker in enumerate(self.breakers):
                if breaker.open and not breaker.wait(now):
                    breaker.started(now)
                    self.replicas.admits(number, 1)
            if isinstance(placed := self.replicas.place(trace, prefix, 0.0, 0.0), Placed):
                return placed
            await asyncio.sleep(POLL)


class Conversation:
    """A `ChatModel` for the one episode that is called `trace`; to be closed after it. `events` are added to."""

    def __init__(self, endpoints: Endpoints, trace: str, events: list[Event], clock: Callable[[], float]) -> None:
        self.name = endpoints.chats[0].name
        self._endpoints, self._trace, self._events, self._clock = endpoints, trace, events, clock
        self._prefix, self._at = b"", -1

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SamplingParams,
        history: Sequence[Segment] = (),
    ) -> Reply:
        self._prefix = self._prefix or msgspec.msgpack.encode((tools, messages[:-1] or messages))
        known, failed = self._endpoints, set[int]()
        while True:
            placed = await known.place(self._trace, self._prefix)
            at, address, breaker = placed.replica, known.addresses[placed.replica], known.breakers[placed.replica]
            if at != self._at:
                self._at = at
                self._tell("placed", f"on {address}: {placed.why}")
            try:
                reply = await known.chats[at].reply(messages, tools, params, history)
            except Unreachable as error:
                self.close()
                known.replicas.lost(at)
                if breaker.failed(time.monotonic()):
                    self._tell("opened", f"{address} gets one request at a time until it answers")
                failed.add(at)
                if len(failed) == len(known.chats):
                    raise
                self._tell("moved", f"away from {error}")
                continue
            if breaker.worked():
                known.replicas.admits(at, known.at_once)
                self._tell("closed", f"{address} answers again")
            known.replicas.paused(self._trace, 0.0, time.monotonic())
            return reply

    def close(self) -> None:
        self._endpoints.replicas.ended(self._trace)

    def _tell(self, what: str, why: str) -> None:
        self._events.append(Event(when=self._clock(), what=what, whom=self._trace, why=why))
