"""Held-out tasks, tried now and then while the stage trains: a metric, a curve, and the alarm of a gamed reward.

They are the first of the evaluation's, asked as there, always the same ones; nothing is trained or chosen by them. What
speaks for a gamed reward is `evaluation.gaming`'s to say.
"""

from __future__ import annotations

from msgspec import Struct

from temper.core.task import Task
from temper.core.trace import Trace, Verdict
from temper.evaluation.gaming import suspicion
from temper.evaluation.runner import evaluate
from temper.runs.answers import held
from temper.runs.stages.rl import Config
from temper.runs.workshop import Workshop


class Probed(Struct, frozen=True, kw_only=True):
    """Which held-out tasks the weights of version `step` solved; masked ones are left out."""

    step: int
    solved: dict[str, bool]


class Probe:
    """`start`: the version that the stage begins with."""

    def __init__(self, shop: Workshop, config: Config, start: int) -> None:
        self.shop, self.start = shop, start
        self.every = config.probe.every if config.steps > config.probe.every else 0  # one alone compares with nothing
        self._tasks = held(shop, config.probe.tasks) if self.every else []
        self._log = shop.run.log("probed", Probed)
        self._ringing = False

    async def take(self, version: int) -> dict[str, float]:
        """Success under the weights that the engine holds, as a metric; none where it is not the time."""
        if not self.every or (version - self.start) % self.every:
            return {}
        shop, settings = self.shop, self.shop.recipe.evaluation

        async def one(task: Task) -> tuple[Trace, Verdict]:
            params = shop.seeded(settings.sampling, task.id)
            return await shop.attempt(task, shop.model, params, f"probe-{version}-{task.id}")

        outcomes = await evaluate(self._tasks, one, settings.concurrency)
        solved = {o.task: o.success for o in outcomes if not o.verdict.masked}
        if 2 * len(solved) < len(self._tasks):  # an outage: too few to say anything by
            return {}
        self._log.append(Probed(step=version, solved=solved))
        self._alarm(version)
        return {"heldout": sum(solved.values()) / len(solved)}

    def _alarm(self, version: int) -> None:
        """Said once, and again when it comes back."""
        run = self.shop.run  # a step that was taken again after a crash counts once
        rewards = {m.step: m.values["reward"] for m in run.metrics if m.stage == "rl" and "reward" in m.values}
        solved = {p.step: p.solved for p in self._log if p.step <= version}
        why = suspicion(rewards, solved)
        if why and not self._ringing:
            self.shop.event("alarm", "rl", f"reward hacking: {why}")
        self._ringing = bool(why)
