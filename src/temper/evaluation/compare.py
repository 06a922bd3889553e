"""Two sets of outcomes against each other, paired by task: stages of one run, or two runs on the same tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from temper.evaluation.outcome import Outcome, success_by_task
from temper.evaluation.statistics import Interval, difference


class Comparison(Struct, frozen=True, kw_only=True):
    """after - before. `gained` and `lost` are the tasks whose success rate rose and fell; `unpaired` are left out."""

    overall: Interval
    domains: dict[str, Interval]
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    unpaired: int


def compare(before: Sequence[Outcome], after: Sequence[Outcome]) -> Comparison:
    """Only tasks that both sides graded count, so that both see the same questions."""
    old, new = success_by_task(before), success_by_task(after)
    change = {task: new[task] - old[task] for task in sorted(old.keys() & new.keys())}
    domain = {outcome.task: outcome.domain for outcome in (*before, *after)}

    def interval(tasks: Iterable[str]) -> Interval:
        tasks = list(tasks)
        return difference([old[task] for task in tasks], [new[task] for task in tasks])

    return Comparison(
        overall=interval(change),
        domains={d: interval(t for t in change if domain[t] == d) for d in sorted({domain[t] for t in change})},
        gained=tuple(task for task, gap in change.items() if gap > 0),
        lost=tuple(task for task, gap in change.items() if gap < 0),
        unpaired=len(old.keys() ^ new.keys()),
    )
