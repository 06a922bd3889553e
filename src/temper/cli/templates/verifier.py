"""NAME: the answer is the expected word.

Reference: {"answer": "Paris"}. State here what a right answer is, what counts as the same, and what does not.
"""

from __future__ import annotations

from msgspec import Struct

from temper.core.task import Case, Message, Task
from temper.verifiers.grading import Given, Judgement, Plugin


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 2.0  # limit of one check


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    answer: str


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    gold = reference.answer
    right = await given.pool.judge(f"{__name__}:check", (given.answer, gold), (gold, gold), bool, settings.seconds)
    return Judgement(float(right), "" if right else f"{given.answer[:80]!r} is not the expected answer")


def check(said: str, gold: str) -> bool:
    """Runs in a killable worker, as everything should that looks at model output."""
    return said.strip().casefold() == gold.strip().casefold()


def problem(reference: Reference, task: Task) -> str:
    """Why a reference is none, "" when it is sound."""
    return "" if reference.answer.strip() else "an empty answer would pass by saying nothing"


create = Plugin(__name__, Config, Reference, judge, problem)


def specimen() -> tuple[Task, tuple[Case, ...]]:
    """A task with answers whose grades are known: what `temper check verifier` tries it on."""
    task = Task(id="specimen", domain="specimen", messages=(Message("user", "?"),), reference={"answer": "Paris"})
    return task, (
        Case(right=True, why="as it is", answer="Paris"),
        Case(right=True, why="in small letters", answer="paris\n"),
        Case(right=False, why="a letter more", answer="Pariss"),
        Case(right=False, why="another word", answer="London"),
    )
