"""How fast samples start, in which order, and when a step may be taken, so that no token is trained older than `eta`.

`Pacing` is a state machine without I/O or clock: the driver and the simulator (`simulator`) feed it the same events and
tell it the time (`tick`). The unit of `batch`, `capacity` and slots is the sample; a group (the samples of one task) is
trained whole, and so it is a gang: it has slots for all of its samples, or is not opened. A running sample waits for no
sibling, so that groups cannot deadlock however small `capacity` is. A move costs O(log n) of what is open; a step costs
O(batch log batch).

The bound. A step at version v uses a batch and makes version v + 1. A group whose oldest token was sampled at version s
must be trained at a version <= s + eta: its deadline. Three rules keep that without discarding anything:

1. Admission: groups are opened only while (eta + 1) * batch slots are not full; a slot is freed when its sample is
   *trained*. This is AReaL's gate, (eta + v + 1) * batch - (accepted + running), with refills not counted twice.
2. Oldest first: complete groups are trained in the order of their deadlines.
3. Hold: a step is held while, after it, the untrained groups could not all be trained in time, that is while for some
   u >= v more than (u - v) * batch of them have a deadline <= u. The wait names the group that it waits for.

Rule 1 makes the untrained samples feasible when they are admitted, rule 3 keeps them so; hence age <= eta always. The
hold comes before the gradient: once the step is taken, its version exists whether it is published or not. Within the
bound groups are trained as they complete; a rollout goes on over an update of the weights, so none is ever run again.

What starts next. Samples that ran before, the preempted ones first; then, at the beginning of a version, a batch's
worth of new groups, each by one probe; then the waiting sample with the least laxity (`queue`). A long group is thus
found and started early in a version, when most time is left until its deadline, and holds are rare. Domains take turns
by `fairness`.

`spare` > 0 is for outages and comparisons: more groups are open than needed, and instead of holding a step it cancels
the groups that would become too old. That keeps short answers and drops long ones; `kept_over_started` says how much.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from msgspec import Struct, field

from temper.core.config import Amount, Count, Some
from temper.core.errors import ConfigError
from temper.scheduling.fairness import Shares
from temper.scheduling.queue import Lengths, Queue
from temper.scheduling.retry import exhausted

NEVER = 1 << 60


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """batch: samples of a step, a multiple of `group`. eta: greatest age in versions; 0 is synchronous.

    capacity: samples running at once, 0 for what the slots allow. attempts: different workers that one sample may fail
    on before its task is quarantined, or tries where workers have no names. spare: share of groups opened beyond the
    slots, at the price of cancelling the longest. refill: where the algorithm wants groups that teach nothing replaced,
    so many batches of them at most for one step.
    """

    batch: Some = 64
    group: Some = 8
    eta: Count = 1
    capacity: Count = 0
    attempts: Some = 3
    spare: Amount = 0.0
    refill: Count = 3


class Ticket(Struct, frozen=True, gc=False):  # in no cycle, and 100,000 of them may be there
    """Leave to run one sample, and why now. `attempt` counts from 0 and grows when the sample had to be run again.

    `workers`: those with names on which it failed; `faults`: how often it did, preemptions aside.
    """

    group: int
    slot: int
    domain: str
    attempt: int = 0
    why: str = ""
    workers: tuple[str, ...] = ()
    faults: int = 0


class Wait(Struct, frozen=True):
    """Nothing may happen yet, and why."""

    why: str


class _Group(Struct, gc=False):
    """An open, untrained group. `versions`: of each accepted slot's oldest token, of each running one's start."""

    domain: str
    waiting: list[Ticket]
    running: dict[int, float] = field(default_factory=dict)  # slot: when it started
    versions: dict[int, int] = field(default_factory=dict)
    tokens: float = 0.0
    seconds: float = 0.0
    oldest: int = NEVER
    complete: bool = False


class Pacing:
    """The state machine. `shares` are relative weights of domains, counted in useful tokens.

    `until`: the version at which training ends; no sample is started that no step would use.
    """

    def __init__(self, config: Config, shares: Mapping[str, float], version: int = 0, until: int | None = None) -> None:
        if config.batch % config.group:
            raise ConfigError(f"batch ({config.batch}) must be a multiple of group ({config.group})")
        self.config = config
        self.version = version
        self.until = until
        self.shares = Shares(shares)
        self.lengths = Lengths()
        self.queue = Queue()
        self.next_group = 0
        self.groups: dict[int, _Group] = {}  # open and untrained
        self.running = 0
        self.now = 0.0
        self.pace = 0.0  # seconds of a version; 0 until one was trained
        self.kept = self.started = 0.0  # seconds of trained samples, and of these and the cancelled ones
        self.counts = [0, 0]  # samples of the same
        self.refilled = Counter[int]()  # groups that taught nothing and were dropped, by the step that they were for
        self._later: list[tuple[int, str, Mapping[int, int], Mapping[int, int]]] = []
        self._stepped = 0.0
        self._fresh = 0  # groups opened since the last step
        self._late: dict[int, dict[int, None]] = {}  # oldest version: groups that started and are not complete
        self._ready: dict[int, dict[int, None]] = {}  # oldest version: complete groups

    def tick(self, now: float) -> None:
        """The time, in seconds; without it lengths are unknown and groups are started in order."""
        self.now = max(self.now, now)

    @property
    def slots(self) -> int:
        steps = self.config.eta + 1
        if self.until is not None:
            steps = min(steps, self.until - self.version)
        return int(steps * self.config.batch * (1 + self.config.spare))

    @property
    def occupied(self) -> int:
        return len(self.groups) * self.config.group

    @property
    def kept_over_started(self) -> float:
        """Mean seconds of the trained samples over those of all: below 1 where the long ones were cancelled."""
        return (self.kept / self.counts[0]) / (self.started / self.counts[1]) if self.kept else 1.0

    def admit(self) -> Ticket | Wait:
        """The next sample to start: one that runs again, a probe of a new group, or the one with least laxity."""
        config = self.config
        self._take()
        if config.capacity and self.running >= config.capacity:
            return Wait(f"capacity: {self.running} of {config.capacity} samples are running")
        while (number := self.queue.retried()) is not None:
            if number in self.groups and self.groups[number].waiting:
                return self._start(number, "resume queue first")
        room = self.occupied + config.group <= self.slots
        if room and self._fresh * config.group < config.batch:
            return self._open()
        if (number := self.queue.first(self.now, self.pace or 1.0)) is not None:
            return self._start(number, "least time left for its expected length")
        if room:
            return self._open()
        return Wait(f"slots: {self.occupied} of {self.slots} hold untrained samples")

    def _open(self) -> Ticket:
        domain = self._domain()
        number, self.next_group = self.next_group, self.next_group + 1
        self._fresh += 1
        self.groups[number] = _Group(domain, [Ticket(number, slot, domain) for slot in range(self.config.group)])
        ticket = self._start(number, "probe of a new group: its domain is farthest below its share")
        if self.groups[number].waiting:
            self.queue.probed(number, self.now, self.version + self.config.eta, self.lengths.estimate(number, domain))
        return ticket

    def _domain(self) -> str:
        """Of the next group."""
        return self.shares.charge()

    def _start(self, number: int, why: str) -> Ticket:
        group = self.groups[number]
        waited = group.waiting.pop(0)
        ticket = Ticket(number, waited.slot, group.domain, waited.attempt, why, waited.workers, waited.faults)
        group.running[ticket.slot] = self.now
        group.versions[ticket.slot] = min(self.version, group.versions.get(ticket.slot, NEVER))
        self.running += 1
        self._place(number, group)
        if not group.waiting:
            self.queue.drop(number)
        elif self.lengths.known(number):
            self._estimate(number)
        return ticket

    def expect(self, group: int, seconds: float) -> None:
        """What a sample of the group's task took when it was tried before (its history)."""
        self.lengths.expect(group, seconds)
        self._estimate(group)

    def restore(
        self, group: int, domain: str, finished: Mapping[int, int], begun: Mapping[int, int] | None = None
    ) -> None:
        """After a crash: an untrained group with the oldest version of each finished slot; the other slots wait.

        `begun`: the same of those that go on in the middle. Groups come in the order of their numbers; those for which
        a step made room that was lost wait for it again, since with them the others could not all be trained in time.
        """
        self.next_group = max(self.next_group, group + 1)
        self._later.append((group, domain, {**(begun or {}), **finished}, finished))
        self._take()

    def _take(self) -> None:
        """Restored groups for which there is room."""
        while self._later and self.occupied + self.config.group <= self.slots:
            group, domain, known, finished = self._later.pop(0)
            self.shares.charge(domain)
            waiting = [Ticket(group, s, domain) for s in range(self.config.group) if s not in finished]
            self.groups[group] = _Group(domain, waiting, versions={s: self._seen(v) for s, v in known.items()})
            self._place(group, self.groups[group])
            for _ in waiting:
                self.queue.again(group)

    def _seen(self, version: int) -> int:
        """A version that a crash lost counts as the newest that there is, and so does -1: no token was sampled."""
        return min(version, self.version) if version >= 0 else self.version

    def finished(self, ticket: Ticket, oldest_version: int, tokens: float = 1.0) -> None:
        """A sample was graded. `oldest_version`: of its tokens; `tokens`: how many training will use."""
        group = self.groups.get(ticket.group)
        if not group or ticket.slot not in group.running:
            return
        seconds = self.now - group.running.pop(ticket.slot)
        self.running -= 1
        group.versions[ticket.slot] = oldest_version if oldest_version >= 0 else self.version
        group.tokens += tokens
        group.seconds += seconds
        self._place(ticket.group, group)
        self.lengths.observe(ticket.group, ticket.domain, seconds)
        self._estimate(ticket.group)

    def failed(
        self, ticket: Ticket, quarantine: bool = False, worker: str = "", preempted: bool = False, begun: bool = False
    ) -> str:
        """A masked sample: it alone is run again, unless its task cannot be graded. Gives the decision, in words.

        `worker`: the one that it ran on, where workers have names. `preempted`: it lost its place to others and nothing
        is broken, so that it starts again before all that wait, and counts no fault. `begun`: it goes on with tokens
        that it has, and stays as old as they are.
        """
        group = self.groups.get(ticket.group)
        if not group or ticket.slot not in group.running:
            return "dropped: its group is gone"
        faults, workers = ticket.faults + (not preempted), ticket.workers
        if worker and worker not in workers and not preempted:
            workers = (*workers, worker)
        where = f" on {', '.join(workers)}" if workers else ""
        if quarantine or (not preempted and exhausted(faults, len(workers), self.config.attempts)):
            self._drop(ticket.group)
            return "quarantined: " + ("the task cannot be graded" if quarantine else f"{faults} attempts failed{where}")
        del group.running[ticket.slot]
        if not begun:
            del group.versions[ticket.slot]
        self.running -= 1
        again = Ticket(ticket.group, ticket.slot, ticket.domain, ticket.attempt + 1, "", workers, faults)
        group.waiting.insert(0, again)
        self._place(ticket.group, group)
        self.queue.again(ticket.group, first=preempted)
        if preempted:
            return "preempted: it starts again before all that wait, and no fault is counted"
        limit = self.config.attempts
        said = f"; it failed{where}, and {limit} different workers are the limit" if where else f" of {limit}"
        return f"retried: attempt {faults + 1}{said}"

    def refill(self, group: int, flat: bool) -> list[int]:
        """A group is complete; `flat`: it teaches nothing. Gives the groups that are dropped now, for new ones."""
        return self._dropped([group] if flat else [], self.due(group))

    def due(self, group: int) -> int:
        """The version at which a group that is complete will be trained, as far as is known."""
        return self.version

    def _dropped(self, flat: list[int], step: int) -> list[int]:
        """As many of these as `refill` leaves to this step."""
        dropped = flat[: max(0, self.config.refill * self.config.batch // self.config.group - self.refilled[step])]
        self.refilled[step] += len(dropped)
        for number in dropped:
            self._drop(number)
        return dropped

    def batch(self) -> list[int] | Wait:
        """The groups of the next step, or what it waits for. Call `trained` once the step is taken."""
        config = self.config
        need = config.batch // config.group
        ready = sum(map(len, self._ready.values()))
        if ready < need:
            return Wait(f"samples: {ready} of {need} groups are complete")
        left, late = need, 0
        for oldest in sorted(self._late.keys() | self._ready.keys()):
            complete, late_ones = self._ready.get(oldest, {}), self._late.get(oldest, {})
            taken = min(left, len(complete))
            left -= taken
            late += (len(complete) + len(late_ones) - taken) * config.group
            if late > (oldest + config.eta - self.version) * config.batch and not config.spare:
                why = f"group {next(iter(late_ones))}" if late_ones else "the newest complete group"
                return Wait(f"hold: {why} would be trained older than {config.eta} versions")
        chosen: list[int] = []
        for oldest in sorted(self._ready):
            chosen += sorted(self._ready[oldest])[: need - len(chosen)]
        return chosen

    def trained(self, groups: list[int], useless: Collection[int] = ()) -> list[int]:
        """The step was taken: slots are free, the version is one higher. Gives the groups that are cancelled by it.

        `useless`: those without a gradient, which count less towards their domain's share.
        """
        for number in groups:
            group = self.groups[number]
            self.kept += group.seconds
            self.counts[0] += self.config.group
            self.shares.settle(group.domain, group.tokens, number not in useless)
            self._forget(number)
        self.version += 1
        self._fresh = 0
        taken, self._stepped = self.now - self._stepped, self.now
        self.pace = self.pace + 0.3 * (taken - self.pace) if self.pace else taken
        cancelled = self._overdue()
        for number in cancelled:
            self._drop(number)
        self._take()
        return cancelled

    def _overdue(self) -> list[int]:
        buckets = [*self._late.items(), *self._ready.items()]
        return [n for oldest, numbers in buckets if oldest + self.config.eta < self.version for n in numbers]

    def _place(self, number: int, group: _Group) -> None:
        """Keep the group in the bucket of its oldest version."""
        oldest = min(group.versions.values(), default=NEVER)
        complete = not group.waiting and not group.running
        if complete and not group.complete:
            self.shares.complete(group.domain, group.tokens)
        if (oldest, complete) != (group.oldest, group.complete):
            self._unplace(number, group)
            group.oldest, group.complete = oldest, complete
            if oldest != NEVER:
                (self._ready if complete else self._late).setdefault(oldest, {})[number] = None

    def _unplace(self, number: int, group: _Group) -> None:
        buckets = self._ready if group.complete else self._late
        if group.oldest in buckets:
            buckets[group.oldest].pop(number, None)
            if not buckets[group.oldest]:
                del buckets[group.oldest]

    def _estimate(self, number: int) -> None:
        group = self.groups[number]
        if group.waiting:
            deadline = min(group.oldest, self.version) + self.config.eta
            seconds = self.lengths.estimate(number, group.domain, len(group.versions))
            self.queue.estimated(number, deadline - seconds / (self.pace or 1.0))

    def _drop(self, number: int) -> None:
        group = self.groups[number]
        self.shares.drop(group.domain, group.tokens if group.complete else None)
        self._forget(number)

    def _forget(self, number: int) -> None:
        group = self.groups.pop(number)
        self.started += group.seconds + sum(self.now - since for since in group.running.values())
        self.counts[1] += self.config.group - len(group.waiting)
        self.running -= len(group.running)
        self._unplace(number, group)
        self.queue.drop(number)
        self.lengths.forget(number)
