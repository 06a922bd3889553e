"""What a simulation is given, which rollouts and which machines, and what came out of it. Records, no behaviour."""

from __future__ import annotations

import random
from typing import Annotated

from msgspec import Meta, Struct, field

from temper.core.config import Amount, Count, Positive, Some
from temper.scheduling.replicas import Config as Admission
from temper.scheduling.replicas import Speed


class Load(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rollouts of one domain. Lengths are log-normal: `median`, spreads of the logarithm `between` tasks and `within`
    one, cut at `cap`; or drawn from `recorded` groups. They are made in `turns` equal parts; a tool follows each, and
    with replicas it gives `reads` tokens. `prompt`: tokens that a group shares. `tool`, `verify`: seconds after each;
    `slow` stretches seconds, not tokens. `memory`: GiB that a rollout's sandbox may use, `peak`: its mean use of them.
    """

    name: str = "all"
    share: Amount = 1.0
    median: Positive = 2500.0
    between: Amount = 0.8
    within: Amount = 0.5
    cap: Positive = 32768.0
    recorded: tuple[tuple[float, ...], ...] = ()
    prompt: Amount = 0.0
    turns: Some = 1
    reads: Amount = 0.0
    tool: Amount = 0.0
    verify: Amount = 0.0
    slow: Positive = 1.0
    memory: Amount = 0.0
    peak: Amount = 1.0
    priority: int = 0

    def draw(self, rng: random.Random, size: int) -> list[float]:
        if self.recorded:
            found = rng.choice(self.recorded)
            return [rng.choice(found) for _ in range(size)]
        scale = self.median * rng.lognormvariate(0, self.between)
        return [min(self.cap, scale * rng.lognormvariate(0, self.within)) for _ in range(size)]


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers by stage and GiB of `memory`, 0 for as many as are asked for; seconds of a step; share of rollouts lost
    to infrastructure.

    replicas: above 0, in place of `decode`; `cache`: tokens that fit one, `speed` and `admission` as in `replicas`,
    `prefill`: workers that read prompts in their place. shared: they stand still during a step. `sync`: seconds they do
    after one, and then read their caches again if `recompute`.
    """

    decode: Count = 1024
    tool: Count = 0
    verify: Count = 0
    memory: Amount = 0.0
    gradient: Amount = 0.0
    failure: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    replicas: Count = 0
    cache: Amount = 0.0
    prefill: Count = 0
    speed: Speed = Speed()
    admission: Admission = Admission()
    shared: bool = False
    sync: Amount = 0.0
    recompute: bool = True

    @property
    def workers(self) -> dict[str, int]:
        """Of the stages where they are bounded, replicas aside."""
        stages = ("tool", "verify", "prefill" if self.replicas else "decode")
        return {stage: getattr(self, stage) for stage in stages if getattr(self, stage)}


class Outcome(Struct, kw_only=True):
    """What came out. Lengths are decode seconds, with replicas tokens.

    goodput: decode seconds of trained rollouts over decode workers x time; with replicas, the part of their time in
    which they worked x the part of their tokens that was trained. waste: share of decode not trained on, in flight at
    the end included. length_bias: mean length trained over that of all groups opened. bound: no order of the same
    trained rollouts ends before it. pace: seconds of a step, over the later half. ages: trained samples by age.
    """

    steps: int = 0
    seconds: float = 0.0
    pace: float = 0.0
    trained: int = 0
    started: int = 0
    failed: int = 0
    cancelled: int = 0
    goodput: float = 0.0
    waste: float = 0.0
    length_bias: float = 1.0
    domain_bias: float = 1.0  # trained tokens of the domain farthest below its share, over that share
    bound: float = 0.0
    in_flight: int = 0  # most at once
    ages: dict[int, int] = field(default_factory=dict)
    utilisation: dict[str, float] = field(default_factory=dict)
    prefilled: float = 0.0  # tokens read
    migrations: int = 0
    preemptions: int = 0  # of running sessions, whose replica's cache was full
    expired: int = 0  # caches given up while a tool ran
    evicted: int = 0  # rollouts that began again, as sandboxes used more memory than there was

    @property
    def age_max(self) -> int:
        return max(self.ages, default=0)

    @property
    def age_mean(self) -> float:
        return sum(age * n for age, n in self.ages.items()) / max(1, self.trained)
