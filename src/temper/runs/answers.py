"""Answers of the policy to tasks, graded: what the stages between SFT and RL learn from.

Names are a function of stage, task and slot, so that a killed stage finds what it had sampled. A rollout that fails
through no doing of the policy stays masked and is not run again: these stages need some answers, not all.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from temper.core.errors import ConfigError
from temper.core.protocols import SamplingParams
from temper.core.task import Task
from temper.core.trace import Group, Sample
from temper.evaluation import runner
from temper.runs.assess import heldout
from temper.runs.demonstrations import Shown, by_share

if TYPE_CHECKING:
    from temper.runs.workshop import Workshop

AT_ONCE = 64


class Drawn(Struct, frozen=True, kw_only=True):
    """A stage took `count` training tasks of a domain from the `start`-th on."""

    stage: str
    domain: str
    start: int
    count: int


def fresh(shop: Workshop, stage: str, total: int) -> list[Task]:
    """`total` training tasks by the domains' shares, none of which an earlier stage was shown or took.

    Later stages begin after them too.
    """
    log = shop.run.log("drawn", Drawn)
    drawn = {d.domain: d for d in log if d.stage == stage}
    found: list[Task] = []
    for domain, count in by_share(shop, total).items():
        if domain not in drawn:
            shown = [s.count for s in shop.run.log("shown", Shown) if s.domain == domain]
            drawn[domain] = Drawn(stage=stage, domain=domain, start=max(shown, default=0), count=count)
            log.append(drawn[domain])
            shop.run.log("shown", Shown).append(Shown(domain, drawn[domain].start + count))
        start = drawn[domain].start
        tasks = list(itertools.islice(shop.tasks(domain, "train"), start, start + drawn[domain].count))
        if not tasks:
            raise ConfigError(f"stage {stage}: {domain} has no training task after its first {start}")
        found += tasks
    return found


def held(shop: Workshop, count: int) -> list[Task]:
    """Held-out tasks for a stage's own measure: the evaluation's first `count`, from all domains in turn."""
    by_domain = [[t for t in heldout(shop) if t.domain == domain] for domain in shop.domains]
    return [task for row in itertools.zip_longest(*by_domain) for task in row if task is not None][:count]


async def answered(
    shop: Workshop, name: str, tasks: Sequence[Task], each: int, params: SamplingParams, gold: bool = False
) -> list[Group]:
    """A group a task of `each` graded answers; with `gold` also the domain's own answer. Raises nothing for a rollout.

    `name` begins the traces' ids; traces of that name which are stored are taken from there.
    """
    verdicts = {v.trace: v for v in shop.run.verdicts if v.trace.startswith(f"{name}-")}
    traces = {t.id: t for t in shop.run.traces if t.id in verdicts}
    slots = [*map(str, range(each)), *(["gold"] if gold else [])]

    async def one(asked: tuple[int, str]) -> Sample:
        number, slot = asked
        trace_id = f"{name}-{number}-{slot}"
        if trace_id in traces:
            return Sample(traces[trace_id], verdicts[trace_id])
        task = tasks[number]
        model = shop.gold(task) if slot == "gold" else shop.model
        return Sample(*await shop.attempt(task, model, shop.seeded(params, trace_id), trace_id))

    asked = list(itertools.product(range(len(tasks)), slots))
    samples = iter(await runner.each(asked, one, AT_ONCE, lambda done, _: shop.progress(done, len(asked))))
    return [Group(task.id, task.domain, tuple(itertools.islice(samples, len(slots)))) for task in tasks]
