"""Which task is tried next: the one from which most is learnt a second, and how much of the run each domain gets.

A group of n tries teaches when some pass and some fail; its expected signal is the variance of its rewards. With a
Beta posterior for the task's pass rate p, both are closed forms: E[p^n] = prod (a + i) / (a + b + i), and the rewards'
expected within-group variance (n - 1) / n * ab / ((a + b)(a + b + 1)). What a try costs is the sum of *all four* stages
(sample, tools, verify, gradient), so a cheap task beats an equally instructive slow one.

A task's prior is its pool's: all tasks of one domain and level share a Beta that is fitted by what was seen (method of
moments), so that a new task of a hopeless pool is known to be one. Estimates go stale as the policy changes: counts
fade with every version.

`commit` is asked once some tries of a group are graded and the others wait: is the rest worth its seconds, against
what the run yields on average (Charnov's marginal value theorem)? Stopping a group whose tries agree saves most of the
tokens that teach nothing. Such a group is dropped whole; still this shifts training away from tasks with rare
successes: `dropped` counts that by pool.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Mapping

from msgspec import Struct

FADE = 0.99  # of a task's counts, by version
REST = 0.25  # share of the offered tasks that rest after they were tried, so that none is tried over and over
MEMORY = 0.02


class Pool(Struct):
    """Tries and passes of tasks that share a prior, by moments of the tasks' pass rates."""

    tasks: float = 0.0
    mean: float = 0.0  # sum of pass rates
    square: float = 0.0  # sum of their unbiased squares

    def prior(self) -> tuple[float, float]:
        if self.tasks < 8:
            return 0.5, 0.5
        m = min(0.99, max(0.01, self.mean / self.tasks))
        variance = min(0.95 * m * (1 - m), max(0.01 * m * (1 - m), self.square / self.tasks - m * m))
        strength = m * (1 - m) / variance - 1
        return max(0.02, m * strength), max(0.02, (1 - m) * strength)


class _Task(Struct):
    pool: str
    passed: float = 0.0
    failed: float = 0.0
    seconds: float = 0.0  # of one try, 0 while unknown
    version: int = 0


def mixed(a: float, b: float, tries: int, passed: int = 0, failed: int = 0) -> float:
    """Probability that `tries` more samples make the group (`passed`, `failed`) one with both outcomes."""
    if passed and failed:
        return 1.0
    a, b = a + passed, b + failed
    all_pass = all_fail = 1.0
    for i in range(tries):
        all_pass *= (a + i) / (a + b + i)
        all_fail *= (b + i) / (a + b + i)
    return 1.0 - (0.0 if failed else all_pass) - (0.0 if passed else all_fail)


class Curriculum:
    """Posteriors of tasks and pools. `seconds`: what one try costs where nothing was measured."""

    def __init__(self, group: int, seconds: float = 1.0) -> None:
        self.group = group
        self.version = 0
        self.pools: dict[str, Pool] = {}
        self.tasks: dict[str, _Task] = {}
        self.dropped = Counter[str]()
        self._seconds = seconds  # mean of a try over tasks
        self._measured = 0
        self._useful = self._spent = 0.0  # faded, for `rate`
        self._resting: deque[str] = deque()
        self._heap: list[tuple[float, str, int]] = []
        self._stamp: dict[str, int] = {}

    def offer(self, task: str, pool: str) -> None:
        """A task that may be chosen."""
        self.pools.setdefault(pool, Pool())
        self.tasks[task] = _Task(pool, version=self.version)
        self._push(task)

    def posterior(self, task: str) -> tuple[float, float]:
        """Beta parameters of the task's pass rate now."""
        found = self.tasks[task]
        fade = FADE ** (self.version - found.version)
        a, b = self.pools[found.pool].prior()
        return a + fade * found.passed, b + fade * found.failed

    def value(self, task: str) -> float:
        """Expected learning signal of one group a second, all stages."""
        a, b = self.posterior(task)
        return mixed(a, b, self.group) / (self.group * (self.tasks[task].seconds or self._seconds))

    def choose(self) -> str | None:
        """The best task that does not rest; it is out until observed. Values are refreshed as they surface."""
        while self._heap:
            value, task, stamp = heapq.heappop(self._heap)
            if stamp != self._stamp[task]:
                continue
            now = -self.value(task)
            if self._heap and now > self._heap[0][0] + 1e-12 and now > value + 1e-12:
                heapq.heappush(self._heap, (now, task, stamp))
                continue
            self._stamp[task] += 1
            return task
        return None

    def commit(self, task: str, passed: int, failed: int) -> bool:
        """Whether the rest of a group, so far (`passed`, `failed`), is worth its seconds."""
        rest = self.group - passed - failed
        if not rest or (passed and failed) or not passed + failed:
            return True
        a, b = self.posterior(task)
        here = mixed(a, b, rest, passed, failed) / (rest * (self.tasks[task].seconds or self._seconds))
        if here >= self.rate:
            return True
        self.dropped[self.tasks[task].pool] += 1
        return False

    @property
    def rate(self) -> float:
        """Useful groups a second lately; 0 until one was seen."""
        return self._useful / self._spent if self._spent else 0.0

    def observe(self, task: str, passed: int, failed: int, seconds: float = 0.0) -> None:
        """Graded tries of a group; `seconds`: mean cost of a try over all stages."""
        found, n = self.tasks[task], passed + failed
        pool = self.pools[found.pool]
        if n > 1 and not found.passed + found.failed:
            pool.tasks += 1
            pool.mean += passed / n
            pool.square += passed * (passed - 1) / (n * (n - 1))
        fade = FADE ** (self.version - found.version)
        found.passed, found.failed = fade * found.passed + passed, fade * found.failed + failed
        found.version = self.version
        if seconds and not found.seconds:
            self._measured += 1
            self._seconds += (seconds - self._seconds) / self._measured
        found.seconds = 0.7 * (found.seconds or seconds) + 0.3 * seconds
        self._useful += (n == self.group and passed > 0 and failed > 0) - MEMORY * self._useful
        self._spent += n * (seconds or self._seconds) - MEMORY * self._spent
        self._resting.append(task)
        if len(self._resting) > REST * len(self.tasks):
            self._push(self._resting.popleft())

    def _push(self, task: str) -> None:
        self._stamp[task] = self._stamp.get(task, 0) + 1
        heapq.heappush(self._heap, (-self.value(task), task, self._stamp[task]))


def shift(shares: Mapping[str, float], signal: Mapping[str, float], floor: float = 0.25) -> dict[str, float]:
    """Shares moved towards domains that still teach. `signal`: useful groups a second, by domain.

    Every domain keeps `floor` of its recipe share, so that none is forgotten; the rest goes by share x signal.
    """
    total = sum(shares.values())
    weight = {name: share * signal.get(name, 0.0) for name, share in shares.items()}
    spread = sum(weight.values())
    kept = floor if spread else 1.0
    return {n: kept * share / total + (1 - kept) * weight[n] / (spread or 1.0) for n, share in shares.items()}
