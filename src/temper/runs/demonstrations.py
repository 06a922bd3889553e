"""Gold answers played through the real environments: traces for SFT, and worked examples for prompts."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from temper.core.errors import ConfigError
from temper.core.protocols import SamplingParams
from temper.core.task import Message, Task
from temper.core.trace import Trace
from temper.evaluation.runner import each, settled

if TYPE_CHECKING:
    from temper.runs.workshop import Workshop

AT_ONCE = 16


class Shown(Struct, frozen=True):
    """The first `count` training tasks of a domain were shown with their answers: RL begins after them."""

    domain: str
    count: int


async def played(shop: Workshop, counts: dict[str, int]) -> list[Trace]:
    """The first `counts[domain]` training tasks of each, solved by their gold answers; ConfigError if one fails."""

    async def play(numbered: tuple[int, Task]) -> Trace:
        number, task = numbered
        name, model = f"gold-{task.domain}-{number}", shop.gold(task)
        _, trace, verdict = await settled(partial(shop.attempt, task, model, SamplingParams(), name, store=False))
        if verdict.masked or verdict.score < 1:
            why = verdict.evidence[0].text if verdict.evidence else verdict.why
            raise ConfigError(f"the gold answer of {task.id} does not pass its verifier ({verdict.why}): {why}")
        return trace

    tasks = [
        numbered
        for domain, count in counts.items()
        for numbered in enumerate(itertools.islice(shop.tasks(domain, "train"), count))
    ]
    return await each(tasks, play, AT_ONCE, lambda done, _: shop.progress(done, len(tasks)))


async def examples(shop: Workshop, count: int) -> dict[str, list[tuple[Message, ...]]]:
    """`count` worked examples of each domain, as conversations."""
    traces = await played(shop, dict.fromkeys(shop.domains, count))
    return {d: [t.messages() for t in traces if t.domain == d] for d in shop.domains}


def by_share(shop: Workshop, total: int) -> dict[str, int]:
    """`total` split over the domains by their shares, each at least one."""
    weight = sum(shop.shares.values())
    return {d: max(1, round(total * share / weight)) for d, share in shop.shares.items()}
