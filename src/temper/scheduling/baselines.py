"""The published policies, re-implemented to stand beside `pacing` in the simulator. Nothing else uses them.

`Rounds`: a step opens its groups in order and waits (synchronous FIFO), or opens more than it needs and then does one
of three things with those that are not done: cancels them (over-provision and cancel), runs them again later in rounds
of their own without spares (tail batching; RollPacker, arXiv 2509.21009), or lets them go on (partial rollout; APRIL,
arXiv 2509.18521). `WindowedFifo`: asynchronous, groups are trained as they are complete, but
only those within a window anchored at the oldest are open at all (MiniMax Forge).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from temper.scheduling.pacing import Ticket, Wait

Tail = Literal["wait", "cancel", "defer", "carry"]


class _Fifo:
    """Open groups in order; samples of the oldest start first."""

    def __init__(self, need: int, size: int, domain: str) -> None:
        self.need, self.size, self.domain = need, size, domain
        self.version = 0
        self.groups: dict[int, list[int]] = {}  # group: [samples to start, samples to finish]
        self.complete: dict[int, None] = {}
        self._next = 0
        self._waiting: list[Ticket] = []

    def tick(self, now: float) -> None:
        del now

    def admit(self) -> Ticket | Wait:
        while not self._waiting and self.may_open():
            self.open(self.pick())
        return self._waiting.pop() if self._waiting else Wait("slots")

    def open(self, number: int) -> None:
        self.groups[number] = [self.size]
        self._waiting += [Ticket(number, slot, self.domain) for slot in reversed(range(self.size))]

    def pick(self) -> int:
        self._next += 1
        return self._next - 1

    def may_open(self) -> bool:
        raise NotImplementedError

    def finished(self, ticket: Ticket, oldest_version: int, tokens: float = 1.0) -> None:
        del oldest_version, tokens
        self.groups[ticket.group][0] -= 1
        if not self.groups[ticket.group][0]:
            self.complete[ticket.group] = None

    def failed(self, ticket: Ticket, quarantine: bool = False) -> str:
        del quarantine
        self._waiting.append(ticket)
        return "retried"

    def _taken(self, groups: list[int]) -> None:
        for number in groups:
            del self.groups[number], self.complete[number]
        self.version += 1


class Rounds(_Fifo):
    def __init__(self, need: int, size: int, domain: str, spare: float = 0.0, tail: Tail = "wait") -> None:
        super().__init__(need, size, domain)
        self.wide, self.tail = int(need * (1 + spare)), tail
        self.room = self.wide  # groups open at once in this round
        self._deferred: list[int] = []

    def may_open(self) -> bool:
        return len(self.groups) < self.room

    def pick(self) -> int:
        return self._deferred.pop() if self.room == self.need and self._deferred else super().pick()

    def batch(self) -> list[int] | Wait:
        if len(self.complete) < self.need:
            return Wait("samples")
        return list(self.complete)[: self.need]

    def trained(self, groups: list[int], useless: Collection[int] = ()) -> list[int]:
        self._taken(groups)
        if self.tail not in ("cancel", "defer"):
            return []
        dropped = list(self.groups)
        self.groups, self.complete, self._waiting = {}, {}, []
        if self.tail == "defer":
            self._deferred += dropped
            self.room = self.need if len(self._deferred) >= self.need else self.wide
        return dropped


class WindowedFifo(_Fifo):
    """`window`: groups, trained ones among them, that may be open from the oldest incomplete one on."""

    def __init__(self, need: int, size: int, domain: str, window: int) -> None:
        super().__init__(need, size, domain)
        self.window = window

    def may_open(self) -> bool:
        return self._next < self._anchor() + self.window

    def batch(self) -> list[int] | Wait:
        if len(self.complete) < self.need:
            return Wait(f"window: group {self._anchor()} anchors it")
        return list(self.complete)[: self.need]

    def _anchor(self) -> int:
        return next((number for number in self.groups if number not in self.complete), self._next)

    def trained(self, groups: list[int], useless: Collection[int] = ()) -> list[int]:
        self._taken(groups)
        return []
