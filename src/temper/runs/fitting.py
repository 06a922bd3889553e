"""The loop of all stages but RL, and what each says of itself on held-out data.

A stage's own measure is taken item by item before its first step and after its last one, so that the report can give
the difference with an interval. Progress is the trainer's version alone: the order of the data is a function of the
seed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import Struct

from temper.core.trace import Cost
from temper.evaluation.statistics import difference
from temper.store.run import RunDirectory
from temper.training.guards import Config, Guards

if TYPE_CHECKING:
    from temper.runs.workshop import Workshop
    from temper.training.trainer import Trainer


class Measured(Struct, frozen=True, kw_only=True):
    """A stage's own measure of held-out items, one value each. `better`: which way is good."""

    stage: str
    when: Literal["before", "after"]
    metric: str
    better: Literal["lower", "higher"]
    values: list[float]


Held = Callable[[], list[float]]


async def fit(
    shop: Workshop,
    kind: str,
    learner: Trainer,
    steps: Sequence[Any],
    update: Callable[[Any], Awaitable[dict[str, float]]],
    every: int,
    held: tuple[str, Literal["lower", "higher"], Held],
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Take the steps that are left, with a checkpoint after each `every` and the last; none of a refused update.

    `held`: name, sense, measure. `files`: what else a checkpoint holds.
    """
    start = learner.version
    if saved := shop.latest(kind):
        await shop.computed(learner.load, saved / "trainer")
        shop.event("resumed", kind, f"at step {learner.version - start}")
    else:
        await measure(shop, kind, "before", *held)
    guards = Guards(Config())
    for items in steps[learner.version - start :]:
        values = await update(items)
        for alarm in guards.observe(values):
            shop.event("alarm", kind, alarm)
        values["tokens_per_second"] = values["tokens"] / values["seconds"]
        shop.metrics(kind, learner.version, values)
        done = learner.version - start
        shop.progress(done, len(steps))
        shop.accounts.spend(Cost(gradient=values["seconds"]))
        if (done % every == 0 and not values["skipped"]) or done == len(steps):
            with shop.run.checkpoint(f"{kind}-{learner.version:06d}") as folder:
                await shop.computed(learner.save, folder / "trainer")
                for name, content in (files or {}).items():
                    (folder / "trainer" / name).write_bytes(content)
            shop.accounts.afford()
    await measure(shop, kind, "after", *held)


async def measure(
    shop: Workshop,
    kind: str,
    when: Literal["before", "after"],
    metric: str,
    better: Literal["lower", "higher"],
    take: Held,
) -> None:
    """Take a stage's measure and store it, unless it is there."""
    log = shop.run.log("measured", Measured)
    if any(m.stage == kind and m.when == when for m in log):
        return
    values = await shop.computed(take)
    log.append(Measured(stage=kind, when=when, metric=metric, better=better, values=values))
    mean = np.mean(values) if values else float("nan")
    shop.event("held-out", kind, f"{metric} {when}: {mean:.4f} over {len(values)}")


def measures(run: RunDirectory) -> dict[str, Any]:
    """Of each stage: its metric before and after, and the mean difference with its 95 % interval, paired by item."""
    found: dict[str, Any] = {}
    log = list(run.log("measured", Measured))
    for after in (m for m in log if m.when == "after"):
        before = next((m for m in log if m.stage == after.stage and m.when == "before"), None)
        if before is None or not after.values:
            continue
        rates = {*before.values, *after.values} <= {0.0, 1.0}
        gain = difference(before.values, after.values, rates)
        found[after.stage] = {
            "metric": after.metric,
            "better": after.better,
            "before": float(np.mean(before.values)),
            "after": float(np.mean(after.values)),
            "difference": gain.mean,
            "low": gain.low,
            "high": gain.high,
            "n": gain.n,
        }
    return found
