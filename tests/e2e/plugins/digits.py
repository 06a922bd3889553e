"""A domain that a random model can begin to learn: answer with digits only. Its reward is the share of digits."""

import itertools

from temper.core.task import Limits, Message, Provenance, Task
from temper.rollouts.environments import ChatEnvironment


def create(config):
    return Digits()


class Digits:
    name = "plugins.digits"
    levels = (1,)

    def tasks(self, split, level, seed=0):
        for n in itertools.count():
            yield Task(
                id=f"digits-{split}-{n}",
                domain=self.name,
                messages=(Message("user", "abcdefgh"[n % 8]),),
                limits=Limits(turns=1, turn_tokens=16, tokens=17),
                reference={},
                split=split,
                provenance=Provenance(source="test"),
            )

    def environment(self, task, resources):
        return ChatEnvironment(task)

    def verifier(self, task):
        return "plugins.share_of_digits", {}

    def gold(self, task):
        return (Message("assistant", "1234567"),)
