"""A domain of one question a task: which word has this number? Graded by the verifier that its config names."""

import itertools

from msgspec import Struct

from temper.core.task import Case, Message, Provenance, Task
from temper.rollouts.environments import ChatEnvironment


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    verifier: str = "exact"
    flaw: str = ""
    ends: int = 10**9


def create(config=None):
    return Words(config or Config())


class Words:
    name = "audited.words"
    levels = (1,)

    def __init__(self, config):
        self.config = config

    def tasks(self, split, level, seed=0):
        for n in itertools.islice(itertools.count(), self.config.ends):
            word = "".join("abcdefghij"[int(digit)] for digit in f"{n + 1000 * (split == 'train')}7")
            yield Task(
                id=f"words-{split}-{n}",
                domain=self.name,
                messages=(Message("user", f"Which word has the number {n}?"),),
                reference={"answer": word},
                split=split,
                provenance=Provenance(source="test", licence="CC0-1.0"),
            )

    def environment(self, task, resources):
        return ChatEnvironment(task)

    def verifier(self, task):
        return self.config.verifier, {"flaw": self.config.flaw} if self.config.flaw else {}

    def gold(self, task):
        return (Message("assistant", task.reference["answer"]),)

    async def second_opinion(self, task, case, bench):
        return None if "?" in case.answer else sorted(case.answer) == sorted(task.reference["answer"])

    def cases(self, task):
        yield Case(right=True, why="in capitals", answer=task.reference["answer"].upper(), source="outside")
        yield Case(right=False, why="backwards", answer=task.reference["answer"][::-1])
