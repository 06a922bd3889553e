"""What a run spends, by stage and domain, where it is short of something, and what more of it would bring.

Fed with the costs of finished rollouts and steps; it measures nothing itself. Stages are those of `core.trace.Cost`,
or any others that the caller names alike. A suggestion compares, over the stages whose workers are counted, the time
that each needs at least: busy seconds over workers. The longest is the bottleneck; the second longest is what remains
when it is widened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from temper.core.trace import Cost

STAGES = ("queue", "prefill", "decode", "tool", "verify", "gradient", "sync")
WORTH = 0.05  # a gain below this is not suggested


class Suggestion(Struct, frozen=True):
    """`stage` is the bottleneck; with `workers` of it the same work takes `gain` less: 0.31 is 31 % more a second."""

    stage: str
    workers: int
    gain: float

    def __str__(self) -> str:
        return f"{self.stage} is the bottleneck: {self.workers} workers would add {self.gain:.0%}"


class Ledger:
    """Running totals. `prices`: money for a second of a stage. `budgets`: seconds of a stage, or money as "money"."""

    def __init__(self, prices: Mapping[str, float] | None = None, budgets: Mapping[str, float] | None = None) -> None:
        self.prices = dict(prices or {})
        self.budgets = dict(budgets or {})
        self.seconds: dict[str, dict[str, float]] = {}  # by stage, by domain
        self.tokens: dict[str, int] = {}  # by domain
        self.bytes: dict[str, int] = {}  # by stage

    def add(self, domain: str, cost: Cost) -> None:
        for stage in STAGES:
            self.spend(stage, domain, getattr(cost, stage))
        self.tokens[domain] = self.tokens.get(domain, 0) + cost.tokens_in + cost.tokens_out

    def spend(self, stage: str, domain: str, seconds: float, size: int = 0) -> None:
        if seconds:
            by_domain = self.seconds.setdefault(stage, {})
            by_domain[domain] = by_domain.get(domain, 0.0) + seconds
        if size:
            self.bytes[stage] = self.bytes.get(stage, 0) + size

    def stage(self, stage: str) -> float:
        return sum(self.seconds.get(stage, {}).values())

    @property
    def money(self) -> float:
        return sum(self.stage(stage) * price for stage, price in self.prices.items())

    def exceeded(self) -> list[str]:
        """The budgets that are used up, in words."""
        spent = {name: self.money if name == "money" else self.stage(name) for name in self.budgets}
        return [f"{n}: {spent[n]:.4g} of {limit:.4g} spent" for n, limit in self.budgets.items() if spent[n] > limit]

    def suggestion(self, workers: Mapping[str, int]) -> Suggestion | None:
        """The one widening that helps, or None where stages are level. `workers`: of the stages that are counted."""
        needs = sorted(((self.stage(stage) / count, stage) for stage, count in workers.items()), reverse=True)
        if len(needs) < 2 or not needs[0][0]:
            return None
        (longest, stage), rest = needs[0], needs[1][0]
        wanted = min(math.ceil(self.stage(stage) / rest) if rest else 2 * workers[stage], 2 * workers[stage])
        gain = longest / max(rest, self.stage(stage) / wanted) - 1
        return Suggestion(stage, wanted, gain) if gain >= WORTH else None
