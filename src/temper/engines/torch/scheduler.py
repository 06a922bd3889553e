"""What the next step computes. Pure: no tensors, no clock, no I/O; driven by the engine and by tests alike.

A request's work is the part of its tokens whose keys and values are not there yet. One token left means decoding;
more means prefilling, in chunks under a budget that all prefilling requests of a step share, so that decoding never
waits for a long prompt. A publish with `recompute` simply takes the keys and values away: the request prefills again,
prompt and sampled tokens alike, before its next token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from temper.core.protocols import SamplingParams
from temper.engines.torch.prefixes import PrefixTree

SHARED = 16  # tokens in common with a prefill in flight from which on waiting for it pays

Stop = Literal["", "stop", "length", "context", "aborted"]


class Request:
    """One continuation by `policy`. tokens: prompt and sampled, int32; computed: how many have keys and values."""

    def __init__(self, name: str, prompt: np.ndarray, params: SamplingParams, context: int, policy: str = "") -> None:
        self.name, self.params, self.policy = name, params, policy
        self.limit = min(len(prompt) + params.max_tokens, context)  # the longest that it can become
        self._buffer = np.empty(max(self.limit, len(prompt)), np.int32)
        self._buffer[: len(prompt)] = prompt
        self.prompt = self.length = len(prompt)
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.computed = 0
        self.kept = False  # some of its keys and values are older than the current weights
        self.stop: Stop = ""
        self.row: Any = None  # where its keys and values lie; the runner's

    @property
    def tokens(self) -> np.ndarray:
        return self._buffer[: self.length]

    @property
    def sampled(self) -> int:
        return self.length - self.prompt

    def append(self, token: int, logprob: float, version: int) -> None:
        self._buffer[self.length] = token
        self.length += 1
        self.logprobs.append(logprob)
        self.versions.append(version)


class Plan(Struct, frozen=True, eq=False):
    """One step. loads: prefixes to copy into requests first. chunks: prefilling requests with their token counts."""

    loads: list[tuple[Request, list[tuple[Any, int]]]]
    decode: list[Request]
    chunks: list[tuple[Request, int]]


class Scheduler:
    """`row_tokens` bounds what running requests may grow to, all together; each is charged for its limit."""

    def __init__(self, slots: int, row_tokens: int, prefill_tokens: int, tree: PrefixTree[Any]) -> None:
        self.slots, self.row_tokens, self.prefill_tokens, self.tree = slots, row_tokens, prefill_tokens, tree
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.reused = 0  # prompt tokens taken from the tree

    def add(self, request: Request) -> None:
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        (self.running if request in self.running else self.waiting).remove(request)

    def plan(self) -> Plan:
        """Admit, look up prefixes, and share out the prefill budget in order of arrival."""
        self._admit()
        plan, left, in_flight = Plan([], [], []), self.prefill_tokens, set[tuple[str, bytes]]()
        for request in self.running:
            if request.computed == 0 and not self._start(request, left, in_flight, plan):
                continue
            todo = request.length - request.computed
            if todo == 1:
                plan.decode.append(request)
                continue
            in_flight.add(_ahead(request, request.computed))
            chunk = min(todo, left)
            if chunk:
                plan.chunks.append((request, chunk))
                left -= chunk
        return plan

    def done(self, plan: Plan, export: Callable[[Request, int, int], Any]) -> list[Request]:
        """Account for a computed step, let others find what was prefilled; gives the requests that sample now."""
        for request in plan.decode:
            request.computed += 1
        for request, chunk in plan.chunks:
            request.computed += chunk
            self.remember(request, export)
        return plan.decode + [request for request, _ in plan.chunks if request.computed == request.length]

    def remember(self, request: Request, export: Callable[[Request, int, int], Any]) -> None:
        """Put what is computed of a request into the tree, unless it mixes versions."""
        if not request.kept and request.computed:
            self.tree.insert(request.tokens[: request.computed], lambda a, b: export(request, a, b), request.policy)

    def published(self, mode: str, policy: str = "") -> list[Request]:
        """New weights: no old prefix may be found again. Gives the requests whose keys and values are to be dropped."""
        self.tree.clear(policy)
        started = [request for request in self.running if request.computed and request.policy == policy]
        for request in started:
            request.kept = mode == "keep"
            if mode == "recompute":
                request.computed = 0
        return started if mode == "recompute" else []

    def _admit(self) -> None:
        charged = sum(request.limit for request in self.running)
        while self.waiting and len(self.running) < self.slots:
            charged += self.waiting[0].limit
            if self.running and charged > self.row_tokens:
                return
            self.running.append(self.waiting.popleft())

    def _start(self, request: Request, left: int, in_flight: set[tuple[str, bytes]], plan: Plan) -> bool:
        """Find the longest known prefix; False where the request should wait for one that is being computed."""
        found = self.tree.match(request.tokens[:-1], request.policy)
        length = sum(n for _, n in found)
        if _ahead(request, length) in in_flight or (left == 0 and request.length - length > 1):
            return False
        request.computed = length
        self.reused += length
        if found:
            plan.loads.append((request, found))
        return True


def _ahead(request: Request, at: int) -> tuple[str, bytes]:
    """Policy and tokens up to a little past `at`: equal for two requests that would compute the same next tokens."""
    return request.policy, request.tokens[: at + SHARED].tobytes()
