"""`reverse_text` in a world that takes its time: after the answer, seconds with a long tail, as of tests or a browser.

Log-normal with median 0.2 s and a spread of 1 in the logarithm: one of 128 takes about 12 times as long as most.
"""

from __future__ import annotations

import asyncio
import math

from temper.core.protocols import Environment, Observation, Resources
from temper.core.task import Message, Task
from temper.domains import reverse_text
from temper.domains.written import Written
from temper.rollouts.environments import ChatEnvironment

MEDIAN, SPREAD = 0.2, 1.0


def create(config: object = None) -> SlowReverse:
    return SlowReverse(
        "variants.slow_reverse", "similarity", reverse_text.draw, lambda task: task.reference["answer"],
        reverse_text.right, reverse_text.wrong, reverse_text.second,
    )  # fmt: skip


class SlowReverse(Written):
    def environment(self, task: Task, resources: Resources) -> Environment:
        return _Slow(task, resources)


class _Slow(ChatEnvironment):
    def __init__(self, task: Task, resources: Resources) -> None:
        super().__init__(task)
        self._seconds = resources.rng.lognormvariate(math.log(MEDIAN), SPREAD) if task.split == "train" else 0.0

    async def step(self, action: Message) -> Observation:
        await asyncio.sleep(self._seconds)
        return Observation(done=True)
