"""What families share whose answer is one written message: no tools, no sandbox, a right answer in the reference.

A family gives its way of drawing tasks, the right answer to one, and answers whose grade is known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from temper.core.protocols import Environment, Resources
from temper.core.task import Case, Message, Split, Task
from temper.domains.generated import LEVELS, Draft, stream
from temper.rollouts.environments import ChatEnvironment
from temper.verifiers.audit.bench import Bench

Draw = Callable[[random.Random, int], Draft]
Answers = Iterator[tuple[str, str]]  # (why it is right or wrong, the answer)


class Written:
    """`core.protocols.Domain`.

    `right` and `wrong` give answers in other forms, and answers with one mutation each. `second` judges an answer by
    plain comparison, sharing no code with the verifier: None where that cannot tell.
    """

    levels = LEVELS

    def __init__(
        self,
        name: str,
        verifier: str,
        draw: Draw,
        gold: Callable[[Task], str],
        right: Callable[[Task], Answers],
        wrong: Callable[[Task], Answers],
        second: Callable[[Task, str], bool | None] = lambda task, answer: None,
        packages: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.packages = packages  # that its verifier needs besides the project's own requirements
        self._verifier, self._draw, self._gold, self._right, self._wrong = verifier, draw, gold, right, wrong
        self._second = second

    def tasks(self, split: Split, level: int, seed: int = 0) -> Iterator[Task]:
        return stream(self.name, self._draw, split, level, seed)

    def environment(self, task: Task, resources: Resources) -> Environment:
        return ChatEnvironment(task)

    def verifier(self, task: Task) -> tuple[str, Mapping[str, Any]]:
        return self._verifier, {}

    def gold(self, task: Task) -> tuple[Message, ...]:
        return (Message("assistant", self._gold(task)),)

    def cases(self, task: Task) -> Iterator[Case]:
        gold = self._gold(task)
        for right, answers in ((True, self._right(task)), (False, self._wrong(task))):
            for why, answer in answers:
                if answer != gold:
                    yield Case(right=right, why=why, answer=answer)

    async def second_opinion(self, task: Task, case: Case, bench: Bench) -> bool | None:
        return self._second(task, case.answer)
