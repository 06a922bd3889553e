"""What a simulation is given, which rollouts and which machines, and what came out of it. Records, no behaviour."""

from __future__ import annotations

import math
import random
from collections.abc import Collection

from msgspec import Struct, field

from temper.core.errors import ConfigError
from temper.scheduling.replicas import Config as Admission
from temper.scheduling.replicas import Speed


def check_amounts(record: Struct, what: str, above: Collection[str], free: str = "") -> None:
    """Every number of `record` is finite and at least 0, those named in `above` above it; `free` is any.

    Raises ConfigError.
    """
    for name in record.__struct_fields__:
        amount = getattr(record, name)
        if (
            name != free
            and isinstance(amount, int | float)
            and not (0 <= amount < math.inf and (amount or name not in above))
        ):
            least = "above 0" if name in above else "of 0 or more"
            raise ConfigError(f"{what}: expected a finite {name} {least}, got {amount:g}")


class Load(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rollouts of one domain. Lengths are log-normal: `median`, spreads of the logarithm `between` tasks and `within`
    one, cut at `cap`; or drawn from `recorded` groups. They are made in `turns` equal parts; a tool follows each, and
    with replicas it gives `reads` tokens. `prompt`: tokens that a group shares. `tool`, `verify`: seconds after each;
    `slow` stretches seconds, not tokens. `memory`: GiB that a rollout's sandbox may use, `peak`: its mean use of them.
    """

    name: str = "all"
    share: float = 1.0
    median: float = 2500.0
    between: float = 0.8
    within: float = 0.5
    cap: float = 32768.0
    recorded: tuple[tuple[float, ...], ...] = ()
    prompt: float = 0.0
    turns: int = 1
    reads: float = 0.0
    tool: float = 0.0
    verify: float = 0.0
    slow: float = 1.0
    memory: float = 0.0
    peak: float = 1.0
    priority: int = 0

    def __post_init__(self) -> None:
        check_amounts(self, f"load {self.name}", ("median", "cap", "turns", "slow"), "priority")

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

    decode: int = 1024
    tool: int = 0
    verify: int = 0
    memory: float = 0.0
    gradient: float = 0.0
    failure: float = 0.0
    replicas: int = 0
    cache: float = 0.0
    prefill: int = 0
    speed: Speed = Speed()
    admission: Admission = Admission()
    shared: bool = False
    sync: float = 0.0
    recompute: bool = True

    def __post_init__(self) -> None:
        check_amounts(self, "cluster", ())
        if self.failure >= 1:
            raise ConfigError(f"cluster: expected failure as a share below 1, got {self.failure:g}")

    @property
    def pools(self) -> dict[str, float]:
        """Sizes of those that are bounded, replicas aside."""
        names = ("tool", "verify", "memory", "prefill" if self.replicas else "decode")
        return {name: getattr(self, name) for name in names if getattr(self, name)}


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
