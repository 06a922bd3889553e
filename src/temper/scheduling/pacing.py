"""How fast samples may start and when a step may be taken, so that no token is trained older than `eta`.

`Pacing` is a state machine without I/O or clock: the driver and the tests' simulation feed it the same events. The unit
of `batch`, `capacity` and slots is the sample; a group (the samples of one task) is trained whole.

The bound. A step at version v uses a batch and makes version v + 1. A group whose oldest token was sampled at version s
must be trained at a version <= s + eta: its deadline. Three rules keep that without discarding anything:

1. Admission: groups are opened only while (eta + 1) * batch slots are not full; a slot is freed when its sample is
   *trained*. This is AReaL's gate, (eta + v + 1) * batch - (accepted + running), with refills not counted twice.
2. Oldest first: complete groups are trained in the order of their deadlines.
3. Hold: a step is held while, after it, the untrained groups could not all be trained in time, that is while for some
   u >= v more than (u - v) * batch of them have a deadline <= u. The wait names the group that it waits for.

Rule 1 makes the untrained samples feasible when they are admitted, rule 3 keeps them so; hence age <= eta always. The
hold comes before the gradient: once the step is taken, its version exists whether it is published or not.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from temper.core.errors import ConfigError


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """batch: samples of a step, a multiple of `group`. eta: greatest age in versions; 0 is synchronous.

    capacity: samples running at once, 0 for what the slots allow. attempts: tries of one sample before its task is
    quarantined.
    """

    batch: int = 64
    group: int = 8
    eta: int = 1
    capacity: int = 0
    attempts: int = 3


class Ticket(Struct, frozen=True):
    """Leave to run one sample. `attempt` counts from 0 and grows when the sample had to be run again."""

    group: int
    slot: int
    domain: str
    attempt: int = 0


class Wait(Struct, frozen=True):
    """Nothing may happen yet, and why."""

    why: str


class _Group(Struct):
    """An open, untrained group. `versions`: of each accepted slot's oldest token, of each running one's start."""

    domain: str
    waiting: list[Ticket]
    running: set[int]
    versions: dict[int, int]

    @property
    def oldest(self) -> int:
        return min(self.versions.values(), default=1 << 60)

    @property
    def complete(self) -> bool:
        return not self.waiting and not self.running


class Pacing:
    """The state machine. `shares` are relative weights of domains, counted in groups opened.

    `until`: the version at which training ends; no sample is started that no step would use.
    """

    def __init__(self, config: Config, shares: Mapping[str, float], version: int = 0, until: int | None = None) -> None:
        if config.group < 1 or config.batch < 1 or config.batch % config.group:
            raise ConfigError(f"batch ({config.batch}) must be a positive multiple of group ({config.group})")
        if config.eta < 0 or config.capacity < 0 or config.attempts < 1:
            raise ConfigError("eta and capacity must be at least 0, attempts at least 1")
        if not shares or min(shares.values()) < 0 or sum(shares.values()) <= 0:
            raise ConfigError(f"domain shares must be positive numbers, got {dict(shares)}")
        self.config = config
        self.version = version
        self.until = until
        self.shares = {name: share / sum(shares.values()) for name, share in shares.items()}
        self.opened = dict.fromkeys(shares, 0)  # groups opened by domain, for the shares
        self.next_group = 0
        self.groups: dict[int, _Group] = {}  # open and untrained

    @property
    def running(self) -> int:
        return sum(len(g.running) for g in self.groups.values())

    @property
    def slots(self) -> int:
        steps = self.config.eta + 1
        if self.until is not None:
            steps = min(steps, self.until - self.version)
        return steps * self.config.batch

    @property
    def occupied(self) -> int:
        return len(self.groups) * self.config.group

    def admit(self) -> Ticket | Wait:
        """The next sample to start: those of open groups first, oldest group first; else a new group."""
        if self.config.capacity and self.running >= self.config.capacity:
            return Wait(f"capacity: {self.running} of {self.config.capacity} samples are running")
        for group in self.groups.values():
            if group.waiting:
                ticket = group.waiting.pop(0)
                group.running.add(ticket.slot)
                group.versions[ticket.slot] = self.version
                return ticket
        if self.occupied + self.config.group > self.slots:
            return Wait(f"slots: {self.occupied} of {self.slots} hold untrained samples")
        return self._open()

    def _open(self) -> Ticket:
        total = sum(self.opened.values()) + 1
        domain = max(self.shares, key=lambda name: (self.shares[name] * total - self.opened[name], name))
        self.opened[domain] += 1
        number, self.next_group = self.next_group, self.next_group + 1
        tickets = [Ticket(number, slot, domain) for slot in range(self.config.group)]
        self.groups[number] = _Group(domain, tickets[1:], {0}, {0: self.version})
        return tickets[0]

    def restore(self, group: int, domain: str, finished: Mapping[int, int]) -> None:
        """After a crash: an untrained group with the oldest version of each finished slot; the other slots wait."""
        tickets = [Ticket(group, s, domain) for s in range(self.config.group) if s not in finished]
        self.groups[group] = _Group(domain, tickets, set(), dict(finished))
        self.next_group = max(self.next_group, group + 1)

    def finished(self, ticket: Ticket, oldest_version: int) -> None:
        """A sample was graded. `oldest_version`: of its tokens."""
        group = self.groups.get(ticket.group)
        if group:
            group.running.discard(ticket.slot)
            group.versions[ticket.slot] = oldest_version

    def failed(self, ticket: Ticket, quarantine: bool = False) -> str:
        """A masked sample: it alone is run again, unless its task cannot be graded. Gives the decision, in words."""
        group = self.groups.get(ticket.group)
        if not group:
            return "dropped: its group is gone"
        if quarantine or ticket.attempt + 1 >= self.config.attempts:
            del self.groups[ticket.group]
            return "quarantined: " + (
                "the task cannot be graded" if quarantine else f"{ticket.attempt + 1} attempts failed"
            )
        group.running.discard(ticket.slot)
        group.waiting.insert(0, Ticket(ticket.group, ticket.slot, ticket.domain, ticket.attempt + 1))
        return f"retried: attempt {ticket.attempt + 2} of {self.config.attempts}"

    def batch(self) -> list[int] | Wait:
        """The groups of the next step, or what it waits for. Call `trained` once the step is taken."""
        need = self.config.batch // self.config.group
        order = sorted(self.groups, key=lambda g: (self.groups[g].oldest, g))
        complete = [g for g in order if self.groups[g].complete]
        if len(complete) < need:
            return Wait(f"samples: {len(complete)} of {need} groups are complete")
        chosen = complete[:need]
        late = 0
        for g in order:
            if g in chosen:
                continue
            late += self.config.group
            deadline = self.groups[g].oldest + self.config.eta
            if late > (deadline - self.version) * self.config.batch:
                return Wait(f"hold: group {g} would be trained older than {self.config.eta} versions")
        return chosen

    def trained(self, groups: list[int]) -> None:
        """The step was taken: slots are free, the version is one higher."""
        for group in groups:
            del self.groups[group]
        self.version += 1
