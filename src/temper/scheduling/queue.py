"""Which waiting sample starts next: those that ran before, then probes, then the longest for the time it has left.

How long a sample will run is not known before it ran, but the samples of one task are alike. So the first sample of
every group is a probe; what it shows (its length once it ended, and before that how long it has not ended) estimates
its siblings. The estimate is a geometric mean in which the domain's own mean counts like `PRIOR` samples: log-normal
lengths whose spread within a task is sigma and between tasks tau give sigma^2 / tau^2, 0.4 for 0.5 and 0.8. What was
tried seldom might be longer than it looks, so `DOUBT` standard errors are added: little-known groups are sampled
earlier, where a surprise does no harm (makespan over its bound 1.06 without, 1.03 with, on 512 x 16 of those lengths).

Order is by laxity: versions until the group must be trained, less the versions that its sample is expected to take.
Without a deadline (all groups equal) that is longest-first.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

PRIOR = 0.4
DOUBT = 1.5  # in units of the logarithm's spread within a task over the root of the samples tried
HISTORY = 8.0  # what is remembered of a task counts like so many samples
SURVIVED = 2.0  # a sample that has run t without ending is taken to need this many t
MEMORY = 0.05


class Lengths:
    """Seconds that a sample of a group takes: of its finished siblings, of its history, of its domain."""

    def __init__(self) -> None:
        self._domain: dict[str, float] = {}  # mean of the logarithms
        self._group: dict[int, tuple[float, float]] = {}  # (weight, sum of logarithms)

    def expect(self, group: int, seconds: float) -> None:
        """What the group's task took when it was tried before."""
        if seconds > 0:
            self._group[group] = (HISTORY, HISTORY * math.log(seconds))

    def observe(self, group: int, domain: str, seconds: float) -> None:
        if seconds <= 0:
            return
        log = math.log(seconds)
        weight, total = self._group.get(group, (0.0, 0.0))
        self._group[group] = (weight + 1.0, total + log)
        mean = self._domain.get(domain, log)
        self._domain[domain] = mean + MEMORY * (log - mean)

    def known(self, group: int) -> bool:
        return group in self._group

    def estimate(self, group: int, domain: str, tried: int = 0) -> float:
        """0 where nothing at all is known. `tried`: samples of the group that were started; their doubt is added."""
        weight, total = self._group.get(group, (0.0, 0.0))
        doubt = DOUBT / math.sqrt(PRIOR + max(weight, tried)) if tried else 0.0
        if domain in self._domain:
            weight, total = weight + PRIOR, total + PRIOR * self._domain[domain]
        return math.exp(total / weight + doubt) if weight else 0.0

    def forget(self, group: int) -> None:
        self._group.pop(group, None)


class Queue:
    """Groups with samples that wait. The caller keeps the samples; here is only whose turn it is."""

    def __init__(self) -> None:
        self._again: deque[int] = deque()  # one entry a sample that is to be run again
        self._known: list[tuple[float, int]] = []  # (laxity, group), groups with an estimate of their own
        self._key: dict[int, float] = {}
        self._probed: deque[tuple[int, float, int, float]] = deque()  # group, start of its probe, deadline, prior
        self._waits: set[int] = set()

    def again(self, group: int, first: bool = False) -> None:
        (self._again.appendleft if first else self._again.append)(group)

    def probed(self, group: int, now: float, deadline: int, prior: float) -> None:
        """The group's first sample started, its others wait; `prior`: the seconds that one takes in its domain."""
        self._waits.add(group)
        self._probed.append((group, now, deadline, prior))

    def estimated(self, group: int, laxity: float) -> None:
        """The group has an estimate (a new one replaces the old one)."""
        self._waits.add(group)
        self._key[group] = laxity
        heapq.heappush(self._known, (laxity, group))

    def drop(self, group: int) -> None:
        """Nothing of the group waits any more, but for samples that run again."""
        self._waits.discard(group)
        self._key.pop(group, None)

    def retried(self) -> int | None:
        """The group of the sample that is to be run again first."""
        return self._again.popleft() if self._again else None

    def first(self, now: float, pace: float) -> int | None:
        """The group with the least laxity. `pace`: seconds of a version."""
        while self._known and self._key.get(self._known[0][1]) != self._known[0][0]:
            heapq.heappop(self._known)
        while self._probed and (self._probed[0][0] in self._key or self._probed[0][0] not in self._waits):
            self._probed.popleft()
        if not self._probed:
            return self._known[0][1] if self._known else None
        group, since, deadline, prior = self._probed[0]  # the one whose probe runs longest has the largest estimate
        laxity = deadline - max(prior, SURVIVED * (now - since)) / pace
        return self._known[0][1] if self._known and self._known[0][0] <= laxity else group
