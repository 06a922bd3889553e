"""A scorer without weights: how many of the good answer's words stand in the answer, on a scale of its own."""

from __future__ import annotations

from collections.abc import Sequence

from temper.core.task import Message

GOOD = {"forty-two", "bottles"}


def score(messages: Sequence[Message]) -> float:
    return 10.0 * len(GOOD & set(messages[-1].content.rstrip(".").split())) - 3.0


def overflowing(messages: Sequence[Message]) -> float:
    """As numbers of half precision may on long answers."""
    return score(messages) if len(messages[-1].content) < 100 else float("nan")
