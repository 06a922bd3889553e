"""A run on paper: the policy's own objects, driven by drawn or recorded lengths instead of an engine.

Event-driven, on a simulated clock: a rollout goes through decode, tool and verify, each with so many workers and a
first-come queue, then counts as finished; a step takes `gradient` seconds while sampling goes on. Anything with the
six methods of `Policy` can be simulated, so other policies stand beside ours under the same rules (`baselines`).

Not modelled: a rate that depends on the batch, prefill shared between samples, the cost of re-reading a cache after an
update. Seconds here are whatever the workload's lengths are in (tokens, at one token a second).
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct, field

from temper.core.errors import ConfigError, TemperError
from temper.scheduling.ledger import Ledger
from temper.scheduling.pacing import Ticket, Wait


class Policy(Protocol):
    """What decides. `Pacing` is one."""

    version: int

    def tick(self, now: float) -> None: ...
    def admit(self) -> Ticket | Wait: ...
    def finished(self, ticket: Ticket, oldest_version: int, tokens: float = 1.0) -> None: ...
    def failed(self, ticket: Ticket, quarantine: bool = False) -> str: ...
    def batch(self) -> list[int] | Wait: ...
    def trained(self, groups: list[int], useless: Collection[int] = ()) -> list[int]: ...


class Load(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rollouts of one domain. Lengths are log-normal: `median`, spreads of the logarithm `between` tasks and `within`
    one, cut at `cap`; or drawn from `recorded` groups. `tool`, `verify`: seconds after each; `slow` stretches seconds,
    not tokens.
    """

    name: str = "all"
    share: float = 1.0
    median: float = 2500.0
    between: float = 0.8
    within: float = 0.5
    cap: float = 32768.0
    recorded: tuple[tuple[float, ...], ...] = ()
    tool: float = 0.0
    verify: float = 0.0
    slow: float = 1.0

    def draw(self, rng: random.Random, size: int) -> list[float]:
        if self.recorded:
            found = rng.choice(self.recorded)
            return [rng.choice(found) for _ in range(size)]
        scale = self.median * rng.lognormvariate(0, self.between)
        return [min(self.cap, scale * rng.lognormvariate(0, self.within)) for _ in range(size)]


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers by stage, 0 for as many as are asked for; seconds of a step; share of rollouts lost to infrastructure."""

    decode: int = 1024
    tool: int = 0
    verify: int = 0
    gradient: float = 0.0
    failure: float = 0.0

    def __post_init__(self) -> None:
        if min(self.decode, self.tool, self.verify, self.gradient) < 0 or not 0 <= self.failure < 1:
            raise ConfigError("workers and seconds must be at least 0, failure a share below 1")


class Outcome(Struct, kw_only=True):
    """What came out. Lengths are decode seconds.

    goodput: decode seconds of trained rollouts over decode workers x time. waste: share of decode seconds not trained
    on, in flight at the end included. length_bias: mean length trained over that of all groups opened.
    bound: no order of the same trained rollouts ends before it. ages: trained samples by age.
    """

    steps: int = 0
    seconds: float = 0.0
    trained: int = 0
    started: int = 0
    failed: int = 0
    cancelled: int = 0
    goodput: float = 0.0
    waste: float = 0.0
    length_bias: float = 1.0
    domain_bias: float = 1.0  # trained tokens of the domain farthest below its share, over that share
    bound: float = 0.0
    in_flight: int = 0  # most at once
    ages: dict[int, int] = field(default_factory=dict)
    utilisation: dict[str, float] = field(default_factory=dict)

    @property
    def age_max(self) -> int:
        return max(self.ages, default=0)

    @property
    def age_mean(self) -> float:
        return sum(age * n for age, n in self.ages.items()) / max(1, self.trained)


class _Rollout(Struct, eq=False):
    ticket: Ticket
    version: int
    stages: list[tuple[str, float]]  # those to come
    length: float
    since: float = -1.0  # when its stage began, -1 while it waits for a worker


class Simulation:
    """One run. `run(steps)` once; `outcome` and `ledger` then say what happened."""

    def __init__(self, policy: Policy, loads: Sequence[Load], cluster: Cluster, group: int, seed: int = 0) -> None:
        self.policy, self.cluster, self.size, self.seed = policy, cluster, group, seed
        self.loads = {load.name: load for load in loads}
        self.rng = random.Random(f"faults {seed}")
        self.clock = 0.0
        self.outcome = Outcome()
        self.ledger = Ledger()
        self.free = {s: getattr(cluster, s) or 1 << 60 for s in ("decode", "tool", "verify")}
        self.queues: dict[str, deque[_Rollout]] = {stage: deque() for stage in self.free}
        self.running: dict[int, set[_Rollout]] = {}  # by group
        self.in_flight = 0
        self.lengths: dict[int, list[float]] = {}
        self.done: dict[int, dict[int, tuple[str, int, float]]] = {}  # group, slot: domain, oldest version, length
        self._events: list[tuple[float, int, _Rollout | list[int]]] = []
        self._count = 0
        self._all = self._kept = self._longest = 0.0
        self._seen: set[int] = set()  # groups whose lengths are in `_all`
        self._domains = dict.fromkeys(self.loads, 0.0)  # tokens trained on

    def run(self, steps: int) -> Outcome:
        """Raises TemperError where nothing runs and nothing may start: a deadlock of the policy."""
        training = False
        while True:
            self._admit()
            if not training and self.policy.version < steps:
                chosen = self.policy.batch()
                if not isinstance(chosen, Wait):
                    self._account(chosen)
                    training = True
                    self._at(self.clock + self.cluster.gradient, chosen)
            if not self._events:
                raise TemperError(f"nothing runs and nothing may start at version {self.policy.version}")
            self.clock, _, event = heapq.heappop(self._events)
            self.policy.tick(self.clock)
            if isinstance(event, _Rollout):
                self._stage_ended(event)
                continue
            training = False
            for number in self.policy.trained(event):
                self._cancel(number)
            if self.policy.version >= steps:
                return self._summary()

    def _admit(self) -> None:
        while isinstance(ticket := self.policy.admit(), Ticket):
            load = self.loads[ticket.domain]
            if ticket.group not in self.lengths:
                rng = random.Random(f"{self.seed} {ticket.group}")
                drawn = self.lengths[ticket.group] = [load.slow * length for length in load.draw(rng, self.size)]
                if ticket.group not in self._seen:
                    self._seen.add(ticket.group)
                    self._all += sum(drawn)
            length = self.lengths[ticket.group][ticket.slot]
            stages = [("decode", length), ("tool", load.slow * load.tool), ("verify", load.slow * load.verify)]
            rollout = _Rollout(ticket, self.policy.version, [s for s in stages if s[1]], length)
            self.running.setdefault(ticket.group, set()).add(rollout)
            self.in_flight += 1
            self.outcome.started += 1
            self.outcome.in_flight = max(self.outcome.in_flight, self.in_flight)
            self._enter(rollout)

    def _enter(self, rollout: _Rollout) -> None:
        stage, seconds = rollout.stages[0]
        if not self.free[stage]:
            self.queues[stage].append(rollout)
            return
        self.free[stage] -= 1
        rollout.since = self.clock
        self._at(self.clock + seconds, rollout)

    def _stage_ended(self, rollout: _Rollout) -> None:
        ticket = rollout.ticket
        if rollout not in self.running.get(ticket.group, ()):
            return  # cancelled
        self._leave(rollout)
        rollout.stages.pop(0)
        if rollout.stages:
            self._enter(rollout)
            return
        self.running[ticket.group].discard(rollout)
        self.in_flight -= 1
        if self.cluster.failure and self.rng.random() < self.cluster.failure:
            self.outcome.failed += 1
            if self.policy.failed(ticket).startswith("quarantined"):
                self._cancel(ticket.group)
            return
        self.done.setdefault(ticket.group, {})[ticket.slot] = (ticket.domain, rollout.version, rollout.length)
        self.policy.finished(ticket, rollout.version, rollout.length / self.loads[ticket.domain].slow)

    def _leave(self, rollout: _Rollout) -> None:
        """Give the stage's worker to the next that waits for one."""
        stage = rollout.stages[0][0]
        self.ledger.spend(stage, rollout.ticket.domain, self.clock - rollout.since)
        self.free[stage] += 1
        rollout.since = -1.0
        while self.queues[stage]:
            waiting = self.queues[stage].popleft()
            if waiting in self.running.get(waiting.ticket.group, ()):
                self._enter(waiting)
                return

    def _cancel(self, number: int) -> None:
        for rollout in self.running.pop(number, ()):
            self.in_flight -= 1
            self.outcome.cancelled += 1
            if rollout.since >= 0:
                self._leave(rollout)
        self.done.pop(number, None)
        self.lengths.pop(number, None)

    def _account(self, chosen: list[int]) -> None:
        self.outcome.steps += 1
        for number in chosen:
            self.running.pop(number, None)
            self.lengths.pop(number)
            for domain, version, length in self.done.pop(number).values():
                age = self.policy.version - version
                self.outcome.ages[age] = self.outcome.ages.get(age, 0) + 1
                self.outcome.trained += 1
                self._kept += length
                self._domains[domain] += length / self.loads[domain].slow
                self._longest = max(self._longest, length)
        self.ledger.spend("gradient", "", self.cluster.gradient)

    def _at(self, when: float, event: _Rollout | list[int]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, event))

    def _summary(self) -> Outcome:
        for rollout in (r for group in self.running.values() for r in group):
            if rollout.stages[0][0] == "decode" and rollout.since >= 0:
                self.ledger.spend("decode", rollout.ticket.domain, self.clock - rollout.since)
        found, workers = self.outcome, {s: getattr(self.cluster, s) for s in self.free}
        found.seconds = self.clock
        found.utilisation = {s: self.ledger.stage(s) / (n * self.clock) for s, n in workers.items() if n}
        found.utilisation["gradient"] = self.ledger.stage("gradient") / self.clock
        slots = workers["decode"] or found.in_flight
        found.bound = max(self._kept / slots, self._longest)
        found.goodput = self._kept / (slots * self.clock)
        found.waste = 1 - self._kept / self.ledger.stage("decode")
        tokens = sum(self._domains.values())
        shares = sum(load.share for load in self.loads.values())
        found.domain_bias = min(
            self._domains[n] / tokens / (load.share / shares) for n, load in self.loads.items() if load.share
        )
        found.length_bias = (self._kept / found.trained) / (self._all / (len(self._seen) * self.size))
        return found
