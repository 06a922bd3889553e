"""Guess a number in few tries, told "higher" or "lower" after each: many turns, one reward at the end.

A task with a public learning curve (tinker-cookbook). The tries are as many as halving the range needs at worst, so
that little else wins. Level 1: up to 15 numbers below 100, 4 tries. Level 2: up to 63 below 1,000, 6 tries. Level 3: up
to 1,023 below 10,000, 10 tries, as in the public task. Ranges, not numbers, are held out.

A try is the number alone; anything else costs a try and is told so.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

from temper.core.protocols import Environment, Observation, Resources
from temper.core.task import Case, Limits, Message, Split, Task
from temper.domains.generated import LEVELS, Draft, stream
from temper.rollouts.environments import ChatEnvironment
from temper.verifiers.audit.bench import Bench

_TRIES = {1: 4, 2: 6, 3: 10}
_GUESS_TOKENS = 8


def create(config: object = None) -> GuessNumber:
    return GuessNumber()


class GuessNumber:
    """`core.protocols.Domain`."""

    name = "guess_number"
    levels = LEVELS

    def tasks(self, split: Split, level: int, seed: int = 0) -> Iterator[Task]:
        return stream(self.name, draw, split, level, seed)

    def environment(self, task: Task, resources: Resources) -> Environment:
        return Game(task)

    def verifier(self, task: Task) -> tuple[str, Mapping[str, Any]]:
        """The game ends with the number or with the last try, so that the last message decides."""
        return "exact", {}

    def gold(self, task: Task) -> tuple[Message, ...]:
        """Halving what is left."""
        low, high, number = (task.start[name] for name in ("low", "high", "number"))
        said: list[int] = []
        while not said or said[-1] != number:
            said.append((low + high) // 2)
            low, high = (said[-1] + 1, high) if said[-1] < number else (low, said[-1] - 1)
        return tuple(Message("assistant", str(guess)) for guess in said)

    def cases(self, task: Task) -> Iterator[Case]:
        """Last messages."""
        gold, number = task.reference["answer"], task.start["number"]
        for why, answer in (("a line end", f"{gold}\n"), ("spaces", f" {gold} "), ("a line before", f"\n\n{gold}")):
            yield Case(right=True, why=why, answer=answer)
        wrong = {
            "one more": str(number + 1),
            "one less": str(number - 1),
            "two numbers": f"{gold} {number + 1}",
            "all numbers": " ".join(str(n) for n in range(task.start["low"], task.start["high"] + 1)),
            "the range": f"{task.start['low']} to {task.start['high']}",
            "a nought before it": f"0{gold}",
            "a decimal": f"{gold}.0",
            "the other sign": f"-{gold}",
            "no number": "higher",
            "a sentence": f"It is {gold}.",
        }
        for why, answer in wrong.items():
            yield Case(right=False, why=why, answer=answer)

    async def second_opinion(self, task: Task, case: Case, bench: Bench) -> bool:
        """Digit by digit."""
        return list(case.answer.strip()) == [*task.reference["answer"]]


class Game(ChatEnvironment):
    """Its only state is the number, which does not change."""

    async def step(self, action: Message) -> Observation:
        low, high, number = (self.task.start[name] for name in ("low", "high", "number"))
        said = action.content.strip()
        if said == str(number):
            return Observation(done=True)
        if not re.fullmatch(r"[1-9][0-9]{0,5}", said) or not low <= int(said) <= high:
            return Observation((Message("user", f"one number, {low} to {high}"),))
        return Observation((Message("user", "higher" if int(said) < number else "lower"),))

    async def fork(self, n: int) -> list[ChatEnvironment]:
        return [Game(self.task) for _ in range(n)]


def draw(rng: random.Random, level: int) -> Draft:
    tries = _TRIES[level]
    size = rng.randrange(1 << (tries - 1), 1 << tries)  # what so many halvings are needed for, at worst
    low = rng.randint(1, 10 ** (level + 1) - size)
    high = low + size - 1
    number = rng.randint(low, high)
    question = f"Guess my number, {low} to {high}, in {tries} tries."

    def build(rng: random.Random) -> Task:
        return Task(
            id="",
            domain=GuessNumber.name,
            messages=(Message("user", question),),
            limits=Limits(turns=tries, tokens=_GUESS_TOKENS * tries, turn_tokens=_GUESS_TOKENS),
            start={"low": low, "high": high, "number": number},
            reference={"answer": str(number)},
        )

    return Draft(f"{low} to {high}", f"{question} {number}", build)
