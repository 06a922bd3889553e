"""Evaluation between stages: success on the same held-out tasks, so that stages can be compared in pairs."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from temper.core.errors import ConfigError
from temper.core.task import Task
from temper.evaluation.outcome import Outcome
from temper.evaluation.runner import each, judged, with_examples
from temper.runs.demonstrations import by_share, examples

if TYPE_CHECKING:
    from temper.runs.workshop import Workshop


async def assess(shop: Workshop, label: str, count: int = 0) -> None:
    """Evaluate what the engine holds; outcomes go to the store under `label`. `count`: worked examples in the prompt.

    Outcomes that are already there are kept, so that a killed evaluation goes on where it was.
    """
    settings = shop.recipe.evaluation
    log = shop.run.log("outcomes", Outcome)
    there = {o.verdict.trace for o in log if o.stage == label}
    every = {name: task for task in heldout(shop) for name in _names(f"{label}-{task.id}", settings.tries)}
    shown = await examples(shop, count) if count else dict.fromkeys(shop.domains, ())

    async def one(name: str) -> Outcome:
        task = every[name]
        asked = with_examples(task, shown[task.domain])
        params = shop.seeded(settings.sampling, name.removeprefix(f"{label}-"))
        return await judged(task, lambda: shop.attempt(asked, shop.model, params, name, task), label)

    def record(done: int, outcome: Outcome) -> None:
        log.append(outcome)
        shop.progress(len(there) + done, len(every))

    await each([name for name in every if name not in there], one, settings.concurrency, record)
    outcomes = [o for o in log if o.stage == label]
    for domain in shop.domains:
        found = [o.success for o in outcomes if o.domain == domain]
        shop.event("success", f"{label} {domain}", f"{sum(found)} of {len(found)}")


def _names(first: str, tries: int) -> list[str]:
    """Of a task's traces, by try."""
    return [first, *(f"{first}-{n}" for n in range(1, tries))]


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
