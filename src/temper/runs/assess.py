"""Evaluation between stages: greedy success on the same held-out tasks, so that stages can be compared in pairs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from temper.core.errors import ConfigError
from temper.core.task import Task
from temper.core.trace import Trace, Verdict
from temper.evaluation.outcome import Outcome
from temper.evaluation.runner import evaluate, with_examples
from temper.runs.demonstrations import by_share, examples

if TYPE_CHECKING:
    from temper.runs.workshop import Workshop


async def assess(shop: Workshop, label: str, count: int = 0) -> None:
    """Evaluate what the engine holds; outcomes go to the store under `label`. `count`: worked examples in the prompt.

    Outcomes that are already there are kept, so that a killed evaluation goes on where it was.
    """
    settings = shop.recipe.evaluation
    log = shop.run.log("outcomes", Outcome)
    there = {o.task for o in log if o.stage == label}
    every = heldout(shop)
    left = {task.id: task for task in every if task.id not in there}
    shown = await examples(shop, count) if count else dict.fromkeys(shop.domains, ())

    async def one(task: Task) -> tuple[Trace, Verdict]:
        params = shop.seeded(settings.sampling, task.id)
        return await shop.attempt(task, shop.model, params, f"{label}-{task.id}", left[task.id])

    def record(done: int, outcome: Outcome) -> None:
        log.append(outcome)
        shop.progress(len(there) + done, len(every))

    asked = [with_examples(task, shown[task.domain]) for task in left.values()]
    await evaluate(asked, one, settings.concurrency, stage=label, progress=record)
    outcomes = [o for o in log if o.stage == label]
    for domain in shop.domains:
        found = [o.success for o in outcomes if o.domain == domain]
        shop.event("success", f"{label} {domain}", f"{sum(found)} of {len(found)}")


def heldout(shop: Workshop) -> list[Task]:
    """The held-out tasks of the recipe, the same ones each time. Raises ConfigError where a domain has too few."""
    found: list[Task] = []
    for domain, wanted in by_share(shop, shop.recipe.evaluation.tasks).items():
        tasks = list(itertools.islice(shop.tasks(domain, "heldout"), wanted))
        if len(tasks) < wanted:
            raise ConfigError(
                f"{domain} has {len(tasks)} held-out tasks at this level, not {wanted}: lower evaluation.tasks"
            )
        found += tasks
    return found
