"""The published policies, re-implemented to stand beside `pacing` in the simulator. Nothing else uses them.

`Rounds`: a step opens its groups in order and waits (synchronous FIFO), or opens more than it needs and then does one
of three things with those that are not done: cancels them (over-provision and cancel), runs them again later in rounds
of their own without spares (tail batching; RollPacker, arXiv 2509.21009), or lets them go on (partial rollout; APRIL,
arXiv 2509.18521). `WindowedFifo`: asynchronous, groups are trained as they are complete, but only those within a window
anchored at the oldest are open at all (MiniMax Forge).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from temper.scheduling.pacing import Ticket, Wait


class Rounds:
    """Groups are opened in order, and samples of the oldest start first. `tail`: what becomes of the others."""

    def __init__(
        self, need: int, size: int, domain: str, spare: float = 0.0,
        tail: Literal["wait", "cancel", "defer", "carry"] = "wait",
    ) -> None:  # fmt: skip
        self.need, self.size, self.domain, self.tail = need, size, domain, tail
        self.wide = self.room = int(need * (1 + spare))  # groups open at once, in a round with spares and in this one
        self.version = 0
        self.groups: dict[int, int] = {}  # samples to finish of those that are open
        self.complete: dict[int, None] = {}
        self._next = 0
        self._waiting: list[Ticket] = []
        self._deferred: list[int] = []

    def tick(self, now: float) -> None:
        del now

    def admit(self) -> Ticket | Wait:
        while not self._waiting and self._may_open():
            if self.room == self.need and self._deferred:
                number = self._deferred.pop()
            else:
                number, self._next = self._next, self._next + 1
            self.groups[number] = self.size
            self._waiting = [Ticket(number, slot, self.domain) for slot in reversed(range(self.size))]
        return self._waiting.pop() if self._waiting else Wait("slots")

    def finished(self, ticket: Ticket, oldest_version: int, tokens: float = 1.0) -> None:
        del oldest_version, tokens
        self.groups[ticket.group] -= 1
        if not self.groups[ticket.group]:
            self.complete[ticket.group] = None

    def failed(self, ticket: Ticket, quarantine: bool = False) -> str:
        del quarantine
        self._waiting.append(ticket)
        return "retried"

    def batch(self) -> list[int] | Wait:
        return list(self.complete)[: self.need] if len(self.complete) >= self.need else Wait("samples")

    def trained(self, groups: list[int], useless: Collection[int] = ()) -> list[int]:
        self.version += 1
        for number in groups:
            del self.groups[number], self.complete[number]
        if self.tail not in ("cancel", "defer"):
            return []
        dropped = list(self.groups)
        self.groups, self.complete, self._waiting = {}, {}, []
        if self.tail == "defer":
            self._deferred += dropped
            self.room = self.need if len(self._deferred) >= self.need else self.wide
        return dropped

    def _may_open(self) -> bool:
        return len(self.groups) < self.room


class WindowedFifo(Rounds):
    """`window`: groups, trained ones among them, that may be open from the oldest incomplete one on."""

    def __init__(self, need: int, size: int, domain: str, window: int) -> None:
        super().__init__(need, size, domain)
        self.window = window

    def _may_open(self) -> bool:
        oldest = next((number for number in self.groups if number not in self.complete), self._next)
        return self._next < oldest + self.window
