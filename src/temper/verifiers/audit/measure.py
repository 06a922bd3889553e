"""The audit of one domain: its tasks, what is tried on them, and the card that comes out.

On each of `count` tasks: the gold answer as played, and `CASES` others drawn from the same in other words, the author's
right and wrong cases, near misses by one mutation, and the gold answer of another task; outsiders' cases all. Besides,
answers of models that a second rule has judged (`audit.samples`). On a few tasks of each level: every attack. On some
of the answers: determinism and injected faults. A mask in place of a known grade counts as an error.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, TypeVar

import numpy as np
from msgspec import Struct

from temper.core import registry
from temper.core.errors import ConfigError
from temper.core.protocols import Domain
from temper.core.task import Case, Message, Task
from temper.core.trace import Verdict
from temper.verifiers.audit import attacks, cards, mutations, samples
from temper.verifiers.audit.bench import FULL, Bench, each, opened
from temper.verifiers.audit.cards import Card, Failure, Identity
from temper.verifiers.audit.trials import Example, trials
from temper.verifiers.pool import LimitError

TASKS = 300
CASES = 3  # of a task, besides its gold answer: more of them would not narrow the intervals, which are over tasks
ATTACKED = 2  # tasks of each level; bombs, which cost a limit each, are thrown at the first
SHOWN = 20  # failures that a card tells of
_GOLDS = 6  # of other tasks, in attacks that give them all
_SCREEN_SECONDS = 2.0

T = TypeVar("T")


class Graded(Struct, frozen=True):
    task: Task
    case: Case
    verdict: Verdict
    seconds: float
    attack: bool = False

    @property
    def erred(self) -> bool:
        """A right answer without the full score; a wrong one with it; an attack with any. A mask is always wrong."""
        if self.verdict.masked:
            return True
        if self.attack:
            return self.verdict.score > 0
        return (self.verdict.score >= FULL) != self.case.right


async def measure(
    kind: str,
    settings: Mapping[str, Any] | None = None,
    count: int = TASKS,
    progress: Callable[[str, int, int], None] = lambda part, done, total: None,
) -> Card:
    """Audit a domain by its name. `progress` hears the part, how many answers are graded, and of how many tasks.

    Raises ConfigError when verifier or tasks were edited meanwhile.
    """
    table = {"kind": kind, **(settings or {})}
    module, config = registry.configure("domains", table)
    domain = module.create(config)
    identity, sampled = cards.identity(domain), samples.load(module, domain)
    tasks = list(chosen(domain, count))
    async with opened(domain) as bench:
        audit = _Audit(bench, progress)
        golds = await audit.each("gold answers", tasks, audit.gold)
        pairs = list(zip(tasks, golds, [*golds[1:], golds[0]], strict=True))
        known = await audit.each("known answers", pairs, lambda pair: audit.known(*pair))
        judged = await audit.each("samples of models", sampled, lambda pair: audit.judged(*pair))
        by_level = {level: [pair for pair in pairs if pair[0].level == level] for level in domain.levels}
        few = [pair for level in domain.levels for pair in by_level[level][:ATTACKED]]
        attacked = await audit.each("attacks", list(enumerate(few)), lambda at: audit.attacked(*at, golds))
        graded = [*golds, *itertools.chain.from_iterable(known), *judged]
        held = await trials(bench, table, _examples(graded, few))
    if cards.identity(domain) != identity:
        raise ConfigError(f"{kind} or its verifier was changed while it was measured: audit it again")
    return _card(kind, identity, tasks, graded, list(itertools.chain.from_iterable(attacked)), held)


def chosen(domain: Domain, count: int) -> Iterator[Task]:
    """Distinct tasks, evenly over the levels; held-out ones where a level has no more for training."""
    share = ceil(count / len(domain.levels))
    for level in domain.levels:
        streams = (domain.tasks(split, level) for split in ("train", "heldout"))
        yield from itertools.islice(itertools.chain.from_iterable(streams), share)


class _Audit:
    def __init__(self, bench: Bench, progress: Callable[[str, int, int], None]) -> None:
        self.bench, self.progress = bench, progress

    async def each(self, part: str, items: Sequence[Any], work: Callable[[Any], Awaitable[T]]) -> list[T]:
        return await each(items, work, lambda done: self.progress(part, done, len(items)))

    async def gold(self, task: Task) -> Graded:
        trace, artifacts = await self.bench.play(task, self.bench.domain.gold(task), "gold")
        case = Case(right=True, why="gold, as played", answer=trace.answer, artifacts=artifacts)
        return await self._timed(task, case, self.bench.grade(task, trace, artifacts))

    async def judged(self, task: Task, case: Case) -> Graded:
        return await self._timed(task, case, self.bench.judge(task, case))

    async def known(self, task: Task, gold: Graded, other: Graded) -> list[Graded]:
        cases = [case async for case in self._cases(task, gold.case, other.case)]
        random.Random(task.id).shuffle(cases)
        right = [case for case in cases if case.right and case.source == "author"][: CASES // 2]
        wrong = [case for case in cases if not case.right and case.source == "author"][: CASES - len(right)]
        others = [case for case in cases if case.source != "author"]
        return [await self.judged(task, case) for case in (*right, *wrong, *others)]

    async def _cases(self, task: Task, gold: Case, other: Case) -> AsyncIterator[Case]:
        name, _ = self.bench.domain.verifier(task)
        author = getattr(self.bench.domain, "cases", None)
        for case in itertools.chain(author(task) if author else (), mutations.forms(name, gold)):
            yield case
        if mutations.differ(gold, other):
            wrong = {"right": False, "why": "the answer of another task"}
            yield Case(**wrong, answer=other.answer, artifacts=other.artifacts)
        for case, screen in mutations.misses(name, task, gold):
            if not screen or await self._confirmed(*screen):
                yield case

    async def _confirmed(self, screen: str, *args: Any) -> bool:
        try:
            return await self.bench.pool.run(screen, *args, seconds=_SCREEN_SECONDS)
        except LimitError:
            return True  # a mutation that never ends is one

    async def attacked(self, at: int, pair: tuple[Task, Graded, Graded], golds: Sequence[Graded]) -> list[Graded]:
        task, gold, _ = pair
        different = (g.case for g in golds if mutations.differ(gold.case, g.case))
        others = [case.answer or str(case.artifacts)[:200] for case in itertools.islice(different, _GOLDS)]
        found = []
        for name, script in attacks.said(task, gold.case.answer, others):
            if at % ATTACKED == 0 or not attacks.is_bomb(name):
                found.append(await self._played(task, name, script))
        for case in attacks.delivered(task, gold.case, others):
            if at % ATTACKED == 0 or not attacks.is_bomb(case.why):
                found.append(await self._timed(task, case, self.bench.judge(task, case), True))
        return found

    async def _played(self, task: Task, name: str, script: tuple[Message, ...]) -> Graded:
        trace, artifacts = await self.bench.play(task, script, name)
        case = Case(right=False, why=name, answer=script[-1].content[:200])
        return await self._timed(task, case, self.bench.grade(task, trace, artifacts), True)

    async def _timed(self, task: Task, case: Case, grading: Awaitable[Verdict], attack: bool = False) -> Graded:
        began = time.perf_counter()
        verdict = await grading
        return Graded(task, case, verdict, time.perf_counter() - began, attack)


def _examples(graded: Sequence[Graded], few: Sequence[tuple[Task, Graded, Graded]]) -> list[Example]:
    """Right and wrong answers to the attacked tasks, graded as they were delivered."""
    ids = {task.id for task, _, _ in few}
    taken = [g for g in graded if g.task.id in ids and g.case.why != "gold, as played"]
    return [Example(g.task, g.case, g.verdict) for right in (True, False) for g in taken if g.case.right == right]


def _card(
    kind: str, identity: Identity, tasks: Sequence[Task], graded: Sequence[Graded], attacked: Sequence[Graded],
    held: dict[str, str],
) -> Card:  # fmt: skip
    errors: dict[bool, dict[str, list[bool]]] = {True: {}, False: {}}
    sources: dict[str, int] = {}
    for g in graded:
        errors[g.case.right].setdefault(g.task.id, []).append(g.erred)
        sources[g.case.source] = sources.get(g.case.source, 0) + 1
    kinds: dict[str, tuple[int, int]] = {}
    for g in attacked:
        kept, tried = kinds.get(g.case.why, (0, 0))
        kinds[g.case.why] = (kept + (not g.erred), tried + 1)
    p50, p99 = np.percentile([g.seconds * 1000 for g in graded], (50, 99))
    return Card(
        domain=kind,
        identity=identity,
        tasks=len({task.id for task in tasks}),
        false_positives=cards.rate(errors[False]),
        false_negatives=cards.rate(errors[True]),
        attacks=kinds,
        sources=sources,
        trials=held,
        latency_ms={"p50": round(float(p50), 2), "p99": round(float(p99), 2)},
        failures=tuple(_failure(g) for g in (*attacked, *graded) if g.erred)[:SHOWN],
    )


def _failure(graded: Graded) -> Failure:
    verdict = graded.verdict
    why = f": {verdict.evidence[0].text[:120]}" if verdict.evidence else ""
    kind = "attack" if graded.attack else "right" if graded.case.right else "wrong"
    found = f"{verdict.status} {verdict.score:g} ({verdict.why}){why}"
    return Failure(task=graded.task.id, what=f"{kind}: {graded.case.why}", found=found)
