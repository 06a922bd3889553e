"""Which task of a domain a new group gets: the next of its stream, or the one that teaches most a second.

With a `window` the first so many tasks of every stream are offered to `scheduling.curriculum`, and what was graded
moves its posteriors; tasks are then tried again and again, and the hopeless and the solved ones seldom. Tasks that were
quarantined do not come back. A resumed run begins with fresh posteriors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from temper.core.errors import ConfigError
from temper.core.task import Task
from temper.core.trace import Sample
from temper.runs.workshop import Workshop
from temper.scheduling.curriculum import REST, Curriculum


class Choice:
    """`start`: by domain, the index in its stream at which training tasks begin. `groups`: most that are open."""

    def __init__(self, shop: Workshop, start: dict[str, int], window: int, size: int, groups: int) -> None:
        if window and window * (1 - REST) < groups:
            least = int(groups / (1 - REST)) + 1
            raise ConfigError(f"window is {window}: with {groups} open groups it must be at least {least}, or 0")
        self.shop, self.window, self.size = shop, window, size
        self.cursor = dict(start)
        self._streams: dict[str, Iterator[Task]] = {}
        self._offered: dict[str, dict[str, tuple[int, Task]]] = {}
        self._curricula: dict[str, Curriculum] = {}

    def next(self, domain: str) -> tuple[int, Task]:
        """Index in the stream, and the task."""
        if self.window:
            chosen = self._curriculum(domain).choose()
            if chosen is None:
                raise ConfigError(f"{domain}: every task of the window is open, rests or was quarantined: widen it")
            return self._offered[domain][chosen]
        if domain not in self._streams:
            self._streams[domain] = self.stream(domain, self.cursor[domain])
        index = self.cursor[domain]
        self.cursor[domain] += 1
        return index, next(self._streams[domain])

    def resumed(self, domain: str, index: int) -> Task:
        """The task of a group that an earlier process opened."""
        return next(self.stream(domain, index))

    def seen(self, domain: str, index: int) -> None:
        """An earlier process opened a group on this one."""
        if not self.window:
            self.cursor[domain] = max(self.cursor[domain], index + 1)

    def learnt(self, task: Task, samples: Sequence[Sample], seconds: float, version: int) -> None:
        """A group was trained: `seconds` of a try, over all stages."""
        if not self.window:
            return
        curriculum = self._curriculum(task.domain)
        curriculum.version = version
        if task.id in curriculum.tasks:
            passed = sum(s.verdict.score >= 0.5 for s in samples)
            curriculum.observe(task.id, passed, len(samples) - passed, seconds)

    def took(self, task: Task) -> float:
        """Seconds of a try at it, 0 where it was not tried before."""
        found = self._curriculum(task.domain).tasks.get(task.id) if self.window else None
        return found.seconds if found else 0.0

    def stream(self, domain: str, start: int) -> Iterator[Task]:
        """Training tasks from the `start`-th on; a stream that ends begins again."""

        def rounds() -> Iterator[Task]:
            while True:
                task = None
                for task in self.shop.tasks(domain, "train"):
                    yield task
                if task is None:
                    raise ConfigError(f"domain {domain} has no training tasks at level {self.shop.levels[domain]}")

        return itertools.islice(rounds(), start, None)

    def _curriculum(self, domain: str) -> Curriculum:
        if domain not in self._curricula:
            self._curricula[domain] = Curriculum(self.size)
            start = self.cursor[domain]
            tasks = itertools.islice(self.stream(domain, start), self.window)
            self._offered[domain] = {task.id: (start + n, task) for n, task in enumerate(tasks)}
            for name in self._offered[domain]:
                self._curricula[domain].offer(name, domain)
        return self._curricula[domain]
