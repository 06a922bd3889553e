"""Asynchronous reinforcement learning: samples run while tools and verifiers work and while the trainer computes.

What may start, which groups are trained and what is held is decided by `scheduling`; this stage carries it out. One
idea a file: `records` (what is on disk of groups and samples, and comes back from there), `attempts` (running samples,
and what happens when one fails), `learner` (one update and its checkpoint), `probe` (held-out tasks on the way), `loop`
(how they take turns).

Nothing finished is lost: a rollout is on disk before it counts, a group counts as trained when the checkpoint of its
step is, and a resumed run goes on from there, conversations in the middle included (`rollouts.resumed`). In a
deterministic run the order is frozen (`scheduling.waves`), so that it also goes on to the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from temper.core import registry
from temper.core.config import Count, Positive, Some
from temper.core.protocols import SamplingParams
from temper.scheduling import pacing
from temper.training import config as training
from temper.training import guards
from temper.training.stages import rl

if TYPE_CHECKING:
    from temper.runs.workshop import Workshop


class Forks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation that reaches its turn of `turns` (each slot of a group has the next) goes on in `children` ways.

    It is one sample to the pacing, and so many to the algorithm.
    """

    children: int = 4
    turns: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        if self.children < 2 or not self.turns or min(self.turns) < 1:
            raise ValueError(f"expected at least 2 children and turns from 1 on, got {self.children} and {self.turns}")


class Probes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tasks` held-out tasks are tried before each `every`-th step; 0: never. In a shorter stage they are not."""

    every: Count = 10
    tasks: Some = 64


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """publish: what running requests do with their cache when new weights come, `recompute` or `keep`.

    patience: seconds without a finished sample or step after which the run stops and says what it waits for.

    floor: below 1, domains' shares move to those with more useful groups a second; each keeps so much of its own.
    window: above 0, so many tasks of each domain are tried again and again, those that teach most a second first.
    forks: fork conversations in the middle, for an algorithm that reads a turn's value off its siblings.
    probe: how often success on held-out tasks is looked at, for the alarm of a gamed reward.
    """

    steps: Some = 20
    pacing: pacing.Config = pacing.Config()
    update: rl.Config = rl.Config()
    trainer: training.Config = training.Config()
    guards: guards.Config = guards.Config()
    sampling: SamplingParams = SamplingParams()
    publish: str = "recompute"
    patience: Positive = 900.0
    floor: Annotated[float, Meta(gt=0, le=1)] = 1.0
    window: Count = 0
    forks: Forks | None = None
    probe: Probes = Probes()
    checkpoint_every: Some = 1


def problem(config: Config, deterministic: bool) -> str:
    """Why these settings cannot be together, "" where they can."""
    if deterministic and (config.floor < 1 or config.window or config.pacing.spare):
        return "floor, window and spare decide by measured seconds, which no deterministic run can: leave them out"
    if config.pacing.batch % config.pacing.group:
        return f"pacing.batch ({config.pacing.batch}) must be a multiple of pacing.group ({config.pacing.group})"
    module, _ = registry.configure("training.algorithms", config.update.algorithm)
    if config.forks and not getattr(module, "forked", False):
        return f"{module.__name__} gives each sample its own credit, and siblings share turns: forks need `branches`"
    return ""


async def run(shop: Workshop, config: Config) -> None:
    from temper.runs.stages.rl.loop import Loop

    await Loop(shop, config).run()
