"""NAME: reverse a word. State here what is asked, what the levels are, and how it is graded."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from temper.core.protocols import Environment, Resources
from temper.core.task import Case, Limits, Message, Split, Task
from temper.domains.generated import LEVELS, Draft, stream
from temper.rollouts.environments import ChatEnvironment

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def create(config: object = None) -> Family:
    return Family()


class Family:
    """`core.protocols.Domain`."""

    name = "NAME"
    levels = LEVELS

    def tasks(self, split: Split, level: int, seed: int = 0) -> Iterator[Task]:
        return stream(self.name, draw, split, level, seed)

    def environment(self, task: Task, resources: Resources) -> Environment:
        return ChatEnvironment(task)

    def verifier(self, task: Task) -> tuple[str, Mapping[str, Any]]:
        return "exact", {}

    def gold(self, task: Task) -> tuple[Message, ...]:
        return (Message("assistant", task.reference["answer"]),)

    def cases(self, task: Task) -> Iterator[Case]:
        """Answers whose grades are known: right ones in other words, wrong ones by one change each."""
        gold = task.reference["answer"]
        yield Case(right=True, why="in capitals", answer=gold.upper())
        yield Case(right=False, why="not reversed", answer=gold[::-1])
        yield Case(right=False, why="the last letter is missing", answer=gold[:-1])


def draw(rng: random.Random, level: int) -> Draft:
    """Longer words at higher levels; none that reads the same both ways."""
    while (word := "".join(rng.choices(_LETTERS, k=3 + 2 * level))) == word[::-1]:
        pass
    question = f"Reverse {word}"

    def build(rng: random.Random) -> Task:
        return Task(
            id="",
            domain=Family.name,
            messages=(Message("user", question),),
            limits=Limits(turns=1, tokens=24, turn_tokens=24),
            reference={"answer": word[::-1]},
        )

    return Draft(word, question, build)
