"""A run on paper: the policy's own objects, driven by drawn or recorded lengths instead of an engine.

Event-driven, on a simulated clock: a rollout takes turns of decode and tool, then is verified, then counts as finished;
a step takes `gradient` seconds while sampling goes on. A stage has so many workers, and memory for sandboxes comes from
`pools`.
Anything with the six methods of `Policy` can be simulated, so others stand beside ours under the same rules
(`baselines`).

Decode is either so many slots, each of one token a second (seconds are then whatever the lengths are in), or replicas
of an engine (`fleet`), whose steps take longer the more run there, and where prompts are read, caches are shared, run
full, are held for tools and read again after an update.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Protocol

from msgspec import Struct, field

from temper.core.errors import ConfigError, TemperError
from temper.scheduling.fleet import Fleet, Session
from temper.scheduling.ledger import Ledger
from temper.scheduling.pacing import Ticket, Wait
from temper.scheduling.pools import Change, Claim, Pools
from temper.scheduling.scene import Cluster, Load, Outcome

_HOPELESS = 50_000  # rollouts lost without a step, after which no more are tried


class Policy(Protocol):
    """What decides. `Pacing` is one."""

    version: int

    def tick(self, now: float) -> None: ...
    def admit(self) -> Ticket | Wait: ...
    def finished(self, ticket: Ticket, oldest_version: int, tokens: float = 1.0) -> None: ...
    def failed(self, ticket: Ticket, quarantine: bool = False) -> str: ...
    def batch(self) -> list[int] | Wait: ...
    def trained(self, groups: list[int], useless: Collection[int] = ()) -> list[int]: ...


class _Rollout(Session, eq=False, kw_only=True):
    ticket: Ticket
    load: Load
    version: int
    length: float
    peak: float | None = None  # GiB that its sandbox will be found to use, None where memory is not counted
    stages: list[tuple[str, float]] = field(default_factory=list)  # those to come, with seconds, or tokens of a replica
    since: float = -1.0  # when its stage began, -1 while it waits
    opened: float = 0.0  # when it got its sandbox
    stamp: int = 0  # of its next event


class _Workers(Struct, eq=False):
    """Of a stage, all alike. Rollouts wait by priority, then in order; one whose stamp is another waits no more."""

    free: int
    waiting: list[tuple[int, int, _Rollout, int]] = field(default_factory=list)


class Simulation:
    """One run. `run(steps)` once; `outcome` and `ledger` then say what happened."""

    def __init__(self, policy: Policy, loads: Sequence[Load], cluster: Cluster, group: int, seed: int = 0) -> None:
        self.policy, self.cluster, self.size, self.seed = policy, cluster, group, seed
        self.loads = {load.name: load for load in loads}
        self.rng = random.Random(f"faults {seed}")
        self.clock = 0.0
        self.outcome = Outcome()
        self.ledger = Ledger()
        self.workers = {stage: _Workers(count) for stage, count in cluster.workers.items()}
        self.pools = Pools({"memory": cluster.memory})
        self.fleet = None
        if cluster.replicas:
            caches, read = [cluster.cache] * cluster.replicas, self._read if cluster.prefill else None
            self.fleet = Fleet(cluster.admission, cluster.speed, caches, self._at, self._turned, read)
        self.running: dict[int, set[_Rollout]] = {}  # by group
        self.in_flight = 0
        self.lengths: dict[int, list[float]] = {}
        self.done: dict[int, dict[int, tuple[str, int, float]]] = {}  # group, slot: domain, oldest version, length
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._training = False
        self._changes = True  # for the policy, since it was asked
        self._lost = 0  # rollouts that failed since the last step
        self._half = (0, 0.0)  # version and time from which `pace` is measured
        self._all = self._kept = self._longest = self._memory = 0.0
        self._seen: set[int] = set()  # groups whose lengths are in `_all`
        self._domains = dict.fromkeys(self.loads, 0.0)  # tokens trained on

    def run(self, steps: int) -> Outcome:
        """Raises TemperError where nothing runs and nothing may start, a deadlock of the policy; ConfigError where so
        much fails that steps do not come."""
        while self.policy.version < steps:
            if self._changes:
                self._changes = False
                self._admit()
                self._step(steps)
            if self.fleet:
                self.fleet.settle()
            if not self._events:
                raise TemperError(f"nothing runs and nothing may start at version {self.policy.version}")
            self.clock, _, act = heapq.heappop(self._events)
            self.policy.tick(self.clock)
            act()
        return self._summary()

    def _step(self, steps: int) -> None:
        if self._training or isinstance(chosen := self.policy.batch(), Wait):
            return
        self._account(chosen)
        self._training = True
        if self.fleet and self.cluster.shared:
            self.fleet.pause(self.clock, self.cluster.gradient)
        self._at(self.clock + self.cluster.gradient, partial(self._trained, chosen, steps))

    def _trained(self, chosen: list[int], steps: int) -> None:
        self._training, self._changes, self._lost = False, True, 0
        for number in self.policy.trained(chosen):
            self._cancel(number)
        if self.policy.version == steps // 2:
            self._half = (self.policy.version, self.clock)
        if self.fleet:
            self.fleet.pause(self.clock, self.cluster.sync, self.cluster.recompute)

    def _admit(self) -> None:
        while isinstance(ticket := self.policy.admit(), Ticket):
            load = self.loads[ticket.domain]
            if ticket.group not in self.lengths:
                self._draw(ticket.group, load)
            rollout = _Rollout(
                group=ticket.group, prompt=load.prompt, ticket=ticket, load=load, version=self.policy.version,
                length=self.lengths[ticket.group][ticket.slot],
            )  # fmt: skip
            self.running.setdefault(ticket.group, set()).add(rollout)
            self.in_flight += 1
            self.outcome.started += 1
            self.outcome.in_flight = max(self.outcome.in_flight, self.in_flight)
            if load.memory and self.cluster.memory:
                spread = random.Random(f"memory {self.seed} {ticket.group} {ticket.slot}").lognormvariate(0, 0.3)
                rollout.peak = load.memory * min(1.0, load.peak * spread)
                self._changed(self.pools.ask(Claim(rollout, {"memory": load.memory}, load.name, load.priority)))
            else:
                self._open(rollout)

    def _draw(self, group: int, load: Load) -> None:
        drawn = load.draw(random.Random(f"{self.seed} {group}"), self.size)
        self.lengths[group] = [self._slow(load) * length for length in drawn]
        if group not in self._seen:
            self._seen.add(group)
            self._all += sum(self.lengths[group])

    def _slow(self, load: Load) -> float:
        """Of lengths: those of slots are seconds, those of replicas tokens."""
        return 1.0 if self.fleet else load.slow

    def _open(self, rollout: _Rollout) -> None:
        """From its first token; it has its sandbox."""
        load, rollout.opened = rollout.load, self.clock
        turn = [("decode", rollout.length / load.turns), ("tool", load.slow * load.tool)]
        rollout.stages = [s for s in load.turns * turn + [("verify", load.slow * load.verify)] if s[1]]
        rollout.tokens = rollout.new = 0.0
        self._enter(rollout)

    def _enter(self, rollout: _Rollout) -> None:
        stage, amount = rollout.stages[0]
        if stage == "decode" and self.fleet:
            rollout.left, rollout.last = amount, all(s != "decode" for s, _ in rollout.stages[1:])
            self.fleet.enter(rollout, self.clock)
        elif (workers := self.workers.get(stage)) and not workers.free:
            self._count += 1
            heapq.heappush(workers.waiting, (-rollout.load.priority, self._count, rollout, rollout.stamp))
        else:
            self._work(rollout, workers)

    def _work(self, rollout: _Rollout, workers: _Workers | None) -> None:
        stage, seconds = rollout.stages[0]
        if workers:
            workers.free -= 1
        rollout.since = self.clock
        rollout.stamp += 1
        self._at(self.clock + seconds, partial(self._done, rollout, rollout.stamp))
        if stage == "tool" and rollout.peak is not None:
            self._changed(self.pools.uses(rollout, {"memory": rollout.peak}))

    def _changed(self, change: Change) -> None:
        for rollout in change.preempted:
            self.outcome.evicted += 1
            self._halt(rollout)
        for rollout in change.granted:
            self._open(rollout)

    def _read(self, rollout: Any, seconds: float) -> None:
        rollout.stages.insert(0, ("prefill", seconds))
        self._enter(rollout)

    def _done(self, rollout: _Rollout, stamp: int) -> None:
        if stamp != rollout.stamp:
            return  # it was cancelled, or began again
        self._stopped(rollout)
        if not rollout.stages:
            return  # who got its worker took its memory as well
        if rollout.stages[0][0] == "prefill" and self.fleet:
            rollout.stages.pop(0)
            self.fleet.start(rollout, self.clock)
        else:
            self._turned(rollout)

    def _turned(self, rollout: Any) -> None:
        """The first of its stages is over."""
        if rollout.stages.pop(0)[0] == "decode":
            rollout.new = rollout.load.reads
        if rollout.stages:
            self._enter(rollout)
            return
        ticket = rollout.ticket
        self.running[ticket.group].discard(rollout)
        self.in_flight -= 1
        self._changes = True
        if rollout.peak is not None:
            self._memory += rollout.peak * (self.clock - rollout.opened)
            self._changed(self.pools.release(rollout, {"memory": rollout.peak}))
        if self.cluster.failure and self.rng.random() < self.cluster.failure:
            self._failed(ticket)
            return
        self.done.setdefault(ticket.group, {})[ticket.slot] = (ticket.domain, rollout.version, rollout.length)
        self.policy.finished(ticket, rollout.version, rollout.length / self._slow(rollout.load))

    def _failed(self, ticket: Ticket) -> None:
        self.outcome.failed += 1
        self._lost += 1
        if self._lost > max(_HOPELESS, 100 * self.outcome.in_flight):
            raise ConfigError(
                f"{self._lost:,} rollouts failed and version {self.policy.version} had no step yet: give a "
                f"cluster.failure below {self.cluster.failure:g}, or more policy.attempts"
            )
        if self.policy.failed(ticket).startswith("quarantined"):
            self._cancel(ticket.group)

    def _stopped(self, rollout: _Rollout) -> None:
        """It waits no more for its stage's workers, or holds none of them."""
        rollout.stamp += 1
        if rollout.since < 0:
            return
        stage = rollout.stages[0][0]
        self.ledger.spend(stage, rollout.ticket.domain, self.clock - rollout.since)
        rollout.since = -1.0
        if workers := self.workers.get(stage):
            workers.free += 1
            while workers.waiting and workers.free:
                _, _, first, stamp = heapq.heappop(workers.waiting)
                if stamp == first.stamp:
                    self._work(first, workers)

    def _halt(self, rollout: _Rollout) -> None:
        """Out of the stage that it is in, or waits for; nothing of it is left."""
        self._stopped(rollout)
        if self.fleet:
            self.fleet.leave(rollout, self.clock)
        if rollout.stages:
            self._memory += (rollout.peak or 0.0) * (self.clock - rollout.opened)
            rollout.stages = []

    def _cancel(self, number: int) -> None:
        for rollout in self.running.pop(number, ()):
            self.in_flight -= 1
            self.outcome.cancelled += 1
            self._halt(rollout)
            self._changed(self.pools.release(rollout))
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
                self._domains[domain] += length / self._slow(self.loads[domain])
                self._longest = max(self._longest, length)
        self.ledger.spend("gradient", "", self.cluster.gradient)

    def _at(self, when: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, act))

    def _summary(self) -> Outcome:
        found, cluster = self.outcome, self.cluster
        self.workers.clear()  # nobody starts any more
        for rollout in (r for group in self.running.values() for r in group):
            self._stopped(rollout)
        workers = cluster.workers | ({"memory": cluster.memory} if cluster.memory else {})
        workers |= {"decode": cluster.replicas or cluster.decode or found.in_flight, "gradient": 1}
        found.seconds, found.pace = self.clock, (self.clock - self._half[1]) / (self.policy.version - self._half[0])
        if self.fleet:
            self.fleet.pause(self.clock, 0.0)
            self.ledger.spend("decode", "", self.fleet.busy)
            found.prefilled, found.migrations = self.fleet.prefilled, self.fleet.migrated
            found.preemptions, found.expired = self.fleet.preempted, self.fleet.expired
            made, rate = self.fleet.decoded, cluster.speed
            at_once = found.in_flight / cluster.replicas
            found.bound = max(
                self._kept * (rate.base / at_once + rate.each) / cluster.replicas, self._longest * rate.step(1)
            )
        else:
            made = self.ledger.stage("decode")
            found.bound = max(self._kept / workers["decode"], self._longest)
        spent = {stage: self.ledger.stage(stage) for stage in workers} | {"memory": self._memory}
        found.utilisation = {stage: spent[stage] / (n * self.clock) for stage, n in workers.items()}
        found.waste = 1 - self._kept / made
        found.goodput = found.utilisation["decode"] * (1 - found.waste)
        tokens = sum(self._domains.values())
        shares = sum(load.share for load in self.loads.values())
        found.domain_bias = min(
            self._domains[n] / tokens / (load.share / shares) for n, load in self.loads.items() if load.share
        )
        found.length_bias = (self._kept / found.trained) / (self._all / (len(self._seen) * self.size))
        return found
