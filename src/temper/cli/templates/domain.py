"""NAME: reverse a word. State here what is asked, what the levels are, and how it is graded."""

from __future__ import annotations

import random

from temper.core.task import Limits, Message, Task
from temper.domains.generated import Draft
from temper.domains.written import Answers, Written

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def create(config: object = None) -> Written:
    return Written("NAME", "exact", draw, lambda task: task.reference["answer"], right, wrong)


def right(task: Task) -> Answers:
    """Other forms of the answer, each with its name."""
    yield "in capitals", task.reference["answer"].upper()


def wrong(task: Task) -> Answers:
    """Answers that one change has made wrong."""
    yield "not reversed", task.reference["answer"][::-1]
    yield "the last letter is missing", task.reference["answer"][:-1]


def draw(rng: random.Random, level: int) -> Draft:
    """Longer words at higher levels; none that reads the same both ways."""
    while (word := "".join(rng.choices(_LETTERS, k=3 + 2 * level))) == word[::-1]:
        pass
    question = f"Reverse {word}"

    def build(rng: random.Random) -> Task:
        return Task(
            id="",
            domain="NAME",
            messages=(Message("user", question),),
            limits=Limits(turns=1, tokens=24, turn_tokens=24),
            reference={"answer": word[::-1]},
        )

    return Draft(word, question, build)
