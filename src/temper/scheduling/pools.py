"""Typed pools of resources: who may hold how much of what, who waits, and who gives way. No I/O, no clock.

A pool is a name and a size in its own unit: prefill and decode (workers), tool (sandbox CPUs), memory (GiB of
sandboxes), verify (workers), gradient (ranks); others work alike, and what is not among `sizes` is unbounded.

*Gang rule.* Claims asked for together are granted together or not at all, and so are the pools of one claim. Nobody
holds one part while waiting for another, so claims cannot deadlock; a gang that no empty machine could hold is refused.

*Order.* Highest priority first, then who asked first, in every pool that a gang touches: a large gang is not overtaken
for ever by small ones, and gangs on other pools pass it.

*Measured cost.* A claim states a limit, but reserves what tasks of its kind were measured to use: mean and four mean
deviations, as TCP sets its timer (Jacobson, SIGCOMM 1988), at most the limit.

*Preemption.* A pool whose tasks are found to use more than it has (`uses`) takes gangs' places away until it has
enough: lowest priority first, then youngest progress, never the last one. They wait again, at their old place.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Mapping
from typing import Any

from msgspec import Struct, field

from temper.core.errors import ConfigError

SEEN = 8  # tasks of a kind before its measured use replaces its limit
MEMORY = 0.125  # weight of a new measure
MARGIN = 4.0  # mean deviations above the mean
ROUNDING = 1e-9  # of a pool's size: sums of what was taken and given back are not exact


class Claim(Struct, frozen=True):
    """What a task needs at once, at most. `kind`: the tasks whose measured use it is expected to share."""

    task: Hashable
    amounts: Mapping[str, float]
    kind: str = ""
    priority: int = 0


class Change(Struct, frozen=True):
    """Tasks that lost what they held and wait again, and then those that hold what they claimed from now on."""

    preempted: tuple[Any, ...] = ()
    granted: tuple[Any, ...] = ()


class _Gang(Struct, eq=False):
    claims: dict[Hashable, Claim]
    rank: tuple[int, int]  # order of service: (-priority, number)
    pools: frozenset[str]
    held: dict[Hashable, dict[str, float]] = field(default_factory=dict)
    known: dict[Hashable, dict[str, float]] = field(default_factory=dict)  # what it held when it lost its place
    started: int = 0  # counts grants


class _Use(Struct):
    tasks: int = 0
    mean: float = 0.0
    deviation: float = 0.0


class Pools:
    """The state machine. `sizes`: of the bounded pools."""

    def __init__(self, sizes: Mapping[str, float]) -> None:
        self.sizes = dict(sizes)
        self.free = {name: size * (1 + ROUNDING) for name, size in sizes.items()}  # below 0 where tasks overuse
        self._gangs: dict[Hashable, _Gang] = {}  # by task, of those that wait or hold
        self._waiting: list[tuple[tuple[int, int], _Gang]] = []  # in order
        self._uses: dict[tuple[str, str], _Use] = {}  # by kind and pool
        self._asked = self._granted = 0  # gangs, so far

    def ask(self, *claims: Claim) -> Change:
        """Claims that are granted together or not at all. Raises ConfigError where they never fit."""
        pools = frozenset(name for claim in claims for name in claim.amounts if name in self.sizes)
        for name in pools:
            if (wanted := sum(claim.amounts.get(name, 0.0) for claim in claims)) > self.sizes[name]:
                who = claims[0].task
                raise ConfigError(f"{who} needs {wanted:g} of {name} at once, the pool has {self.sizes[name]:g}")
        gang = _Gang({c.task: c for c in claims}, (-min(c.priority for c in claims), self._asked), pools)
        self._asked += 1
        self._gangs |= dict.fromkeys(gang.claims, gang)
        if not pools and self._grant(gang):
            return Change((), tuple(gang.held))
        bisect.insort(self._waiting, (gang.rank, gang))
        return Change((), self._serve())

    def release(self, task: Hashable, used: Mapping[str, float] | None = None) -> Change:
        """The task ended, or does not wait any more. `used`: its measured peak, which later claims go by."""
        if not (gang := self._gangs.pop(task, None)):
            return Change()
        claim = gang.claims.pop(task)
        for name, amount in gang.held.pop(task, {}).items():
            self.free[name] += amount
        for name, amount in (used or {}).items():
            self._learn(claim.kind, name, amount)
        return Change((), self._serve())

    def uses(self, task: Hashable, used: Mapping[str, float]) -> Change:
        """What a running task was measured to use now."""
        held, preempted = self._gangs[task].held[task], list[Hashable]()
        for name in held.keys() & used.keys():
            if task not in self._gangs[task].held:
                break  # it lost its place for another pool
            self.free[name] -= max(0.0, used[name] - held[name])
            held[name] = max(held[name], used[name])
            victims = self._victims(name) if self.free[name] < 0 else []
            while self.free[name] < 0 and len(victims) > 1:
                gang = victims.pop()
                for amounts in gang.held.values():
                    for other, amount in amounts.items():
                        self.free[other] += amount
                preempted += gang.held
                gang.known, gang.held = gang.held, {}
                bisect.insort(self._waiting, (gang.rank, gang))
        return Change(tuple(preempted), self._serve())

    def reserve(self, claim: Claim, known: Mapping[str, float] | None = None) -> dict[str, float]:
        """What the claim takes of every bounded pool, and at least what is `known` of its own use."""
        found: dict[str, float] = {}
        for name, limit in claim.amounts.items():
            if name in self.sizes:
                use = self._uses.get((claim.kind, name))
                expected = use.mean + MARGIN * use.deviation if use and use.tasks >= SEEN else limit
                found[name] = min(limit, max(expected, (known or {}).get(name, 0.0)))
        return found

    def _learn(self, kind: str, name: str, amount: float) -> None:
        use = self._uses.setdefault((kind, name), _Use(mean=amount))
        use.tasks += 1
        weight = max(MEMORY, 1 / use.tasks)
        use.deviation += weight * (abs(amount - use.mean) - use.deviation)
        use.mean += weight * (amount - use.mean)

    def _serve(self) -> tuple[Hashable, ...]:
        """Grant in order all that fits; what does not fit blocks the pools that it touches for those behind it."""
        granted: list[Hashable] = []
        blocked, at = frozenset[str](), 0
        while at < len(self._waiting) and len(blocked) < len(self.sizes):
            gang = self._waiting[at][1]
            if gang.pools & blocked:
                at += 1
            elif not gang.claims or self._grant(gang):  # all of it was withdrawn, or is served
                del self._waiting[at]
                granted += gang.held
            else:
                blocked |= gang.pools
        return tuple(granted)

    def _grant(self, gang: _Gang) -> bool:
        """Give it all that it claims, if that is there."""
        taken = {task: self.reserve(claim, gang.known.get(task)) for task, claim in gang.claims.items()}
        need = {name: sum(amounts.get(name, 0.0) for amounts in taken.values()) for name in gang.pools}
        if any(amount > self.free[name] for name, amount in need.items()):
            return False
        for name, amount in need.items():
            self.free[name] -= amount
        self._granted += 1
        gang.held, gang.started = taken, self._granted
        return True

    def _victims(self, name: str) -> list[_Gang]:
        """Running gangs that hold of the pool: highest priority first, then who started first."""
        running = {id(g): g for g in self._gangs.values() if any(held.get(name) for held in g.held.values())}
        return sorted(running.values(), key=lambda g: (g.rank[0], g.started))
