"""One evaluated rollout, reduced to what counting needs, and what counting means by task. Storable in a run's log."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from temper.core.trace import Stop, Verdict
from temper.evaluation.statistics import Interval, wilson


class Outcome(Struct, frozen=True, kw_only=True):
    """`tokens`: sampled ones. `attempts`: this rollout, and those before it that were lost to faults of ours."""

    task: str
    domain: str
    level: int
    stage: str
    verdict: Verdict
    stop: Stop
    tokens: int = 0
    attempts: int = 1

    @property
    def success(self) -> bool:
        """The whole task, not a part: full score, rounding apart."""
        return not self.verdict.masked and self.verdict.score > 1 - 1e-9

    @property
    def malformed(self) -> bool:
        """A parse failure. It is a failure of the policy, in the rates like any other, and counted apart as well."""
        return "malformed" in (self.verdict.why, self.stop)


def success_by_task(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """Share of the graded rollouts of each task that succeeded; a task whose rollouts were all masked is left out."""
    found: dict[str, list[bool]] = {}
    for outcome in outcomes:
        if not outcome.verdict.masked:
            found.setdefault(outcome.task, []).append(outcome.success)
    return {task: sum(all_) / len(all_) for task, all_ in found.items()}


def success(outcomes: Iterable[Outcome]) -> Interval:
    """The rate over graded tasks."""
    by_task = success_by_task(outcomes)
    return wilson(sum(by_task.values()), len(by_task))
