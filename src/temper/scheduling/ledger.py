"""What a run spends, by stage and domain, where it is short of something, and what more of it would bring.

Fed with the costs of finished rollouts and steps (`Spent`); it measures nothing itself. Stages are those of
`core.trace.Cost`, or any others that the caller names alike. A suggestion compares, over the pools whose workers are
counted, the time that each needs at least: busy seconds over workers. The longest is the bottleneck; the second longest
is what remains when it is widened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from temper.core.trace import Cost

STAGES = ("queue", "prefill", "decode", "tool", "verify", "gradient", "sync")
TOTALS = ("seconds", "tokens", "money")  # what a budget may limit besides the seconds of a stage
POOLS = {  # stages that share the workers of one machine
    "compute": ("prefill", "decode", "gradient", "sync"),
    "verification": ("verify",),
    "environment": ("tool",),
}
WORTH = 0.05  # a gain below this is not suggested


class Spent(Struct, frozen=True, kw_only=True):
    """One cost, as a run records it: in which of its parts, of which domain ("" where of none in particular).

    seconds and bytes: by stage. measured: seconds that a shared worker says it was busy since the record before. Many
    rollouts are decoded at once, so that their own seconds add up to more, and then only say how to share these.
    """

    part: str = ""
    domain: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    tokens: int = 0
    bytes: dict[str, int] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def of(cost: Cost, **more: Any) -> Spent:
        seconds = {stage: spent for stage in STAGES if (spent := getattr(cost, stage))}
        return Spent(seconds=seconds, tokens=cost.tokens_in + cost.tokens_out, **more)


class Occupancy:
    """How long a pool's workers had something to do, from when jobs come and go. A queue keeps no more of them busy
    than there are. `seconds`: of all workers together.
    """

    def __init__(self, workers: int) -> None:
        self.seconds = 0.0
        self._workers, self._jobs, self._since = workers, 0, 0.0

    def come(self, now: float, jobs: int = 1) -> None:
        self.seconds += min(self._jobs, self._workers) * (now - self._since)
        self._jobs, self._since = self._jobs + jobs, now

    def go(self, now: float) -> None:
        self.come(now, -1)


class Suggestion(Struct, frozen=True):
    """`stage` is the bottleneck; with `workers` of it the same work takes `gain` less: 0.31 is 31 % more a second."""

    stage: str
    workers: int
    gain: float

    def __str__(self) -> str:
        return f"{self.stage} is the bottleneck: {self.workers} workers would add {self.gain:.0%}"


class Ledger:
    """Running totals. `prices`: money for a second of a stage, and for one of "tokens". `budgets`: see `exceeded`."""

    def __init__(self, prices: Mapping[str, float] | None = None, budgets: Mapping[str, float] | None = None) -> None:
        self.prices = dict(prices or {})
        self.budgets = dict(budgets or {})
        self.seconds: dict[str, dict[str, float]] = {}  # by stage, by domain
        self.measured: dict[str, float] = {}  # by stage
        self.tokens: dict[str, int] = {}  # by domain
        self.bytes: dict[str, int] = {}  # by stage

    def add(self, spent: Spent) -> None:
        for stage, seconds in spent.seconds.items():
            self.spend(stage, spent.domain, seconds)
        for stage, seconds in spent.measured.items():
            self.measured[stage] = self.measured.get(stage, 0.0) + seconds
        for stage, size in spent.bytes.items():
            self.bytes[stage] = self.bytes.get(stage, 0) + size
        self.tokens[spent.domain] = self.tokens.get(spent.domain, 0) + spent.tokens

    def spend(self, stage: str, domain: str, seconds: float) -> None:
        if seconds:
            by_domain = self.seconds.setdefault(stage, {})
            by_domain[domain] = by_domain.get(domain, 0.0) + seconds

    def stage(self, stage: str) -> float:
        """Seconds of a stage, or of a pool's stages: the measured ones where there are any."""
        if stage in POOLS:
            return sum(map(self.stage, POOLS[stage]))
        return self.measured.get(stage) or sum(self.seconds.get(stage, {}).values())

    def share(self, stage: str, domain: str) -> float:
        """A domain's part of a stage's seconds."""
        by_domain = self.seconds.get(stage, {})
        return self.stage(stage) * by_domain[domain] / sum(by_domain.values()) if domain in by_domain else 0.0

    @property
    def domains(self) -> list[str]:
        return sorted({*self.tokens, *(domain for by_domain in self.seconds.values() for domain in by_domain)})

    @property
    def money(self) -> float:
        return sum(map(self.cost, self.domains))

    def cost(self, domain: str) -> float:
        """A domain's part of the money."""
        tokens = self.prices.get("tokens", 0.0) * self.tokens.get(domain, 0)
        return tokens + sum(self.share(s, domain) * p for s, p in self.prices.items() if s != "tokens")

    def exceeded(self, seconds: float = 0.0) -> dict[str, str]:
        """The budgets that are used up, with words. One limits "tokens", "money", the seconds of a stage, or "seconds",
        those of the run itself, which the caller knows.
        """
        totals = {"seconds": seconds, "tokens": sum(self.tokens.values()), "money": self.money}
        spent = {name: totals[name] if name in totals else self.stage(name) for name in self.budgets}
        over = {name: limit for name, limit in self.budgets.items() if spent[name] > limit}
        return {name: f"{name}: {spent[name]:,.6g} of {limit:,.6g} spent" for name, limit in over.items()}

    def suggestion(self, workers: Mapping[str, int], seconds: float = math.inf) -> Suggestion | None:
        """The one widening that helps, or None where stages are level. `workers`: of the stages and pools that count.

        `seconds`: how long all of it took. No worker was busy for longer, whatever rollouts waited for it, and time in
        which nothing counted was busy stays as it is.
        """
        busy = {stage: min(self.stage(stage), count * seconds) for stage, count in workers.items()}
        needs = sorted(((busy[stage] / count, stage) for stage, count in workers.items()), reverse=True)
        if len(needs) < 2 or not needs[0][0]:
            return None
        (longest, stage), rest = needs[0], needs[1][0]
        wanted = min(math.ceil(busy[stage] / rest) if rest else 2 * workers[stage], 2 * workers[stage])
        now = longest if math.isinf(seconds) else seconds
        gain = now / (now - longest + max(rest, busy[stage] / wanted)) - 1
        return Suggestion(stage, wanted, gain) if gain >= WORTH else None
