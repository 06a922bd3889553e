"""A domain of three turns in a world that takes its time: whatever is said, it answers with how long that was."""

import asyncio
import itertools

import msgspec

from temper.core.protocols import Observation
from temper.core.task import Limits, Message, Provenance, Task

TURNS = 3


class Talking:
    def __init__(self, task, heard=()):
        self.task, self.heard = task, list(heard)

    async def start(self):
        return Observation(self.task.messages)

    async def step(self, action):
        await asyncio.sleep(0.05)
        self.heard.append(len(action.content))
        if len(self.heard) == TURNS:
            return Observation(done=True)
        return Observation((Message("user", f"{self.heard[-1]} go on"),))

    async def artifacts(self):
        return {}

    async def save(self):
        return msgspec.json.encode(self.heard)

    async def restore(self, saved):
        self.heard = msgspec.json.decode(saved)

    async def fork(self, n):
        return [Talking(self.task, self.heard) for _ in range(n)]

    async def close(self):
        pass


def create(config):
    return Talk()


class Talk:
    name = "plugins.talk"
    levels = (1,)

    def tasks(self, split, level, seed=0):
        for n in itertools.count():
            yield Task(
                id=f"talk-{split}-{n}",
                domain=self.name,
                messages=(Message("user", "abcdefgh"[n % 8]),),
                limits=Limits(turns=TURNS, turn_tokens=12, tokens=100),
                reference={},
                split=split,
                provenance=Provenance(source="test"),
            )

    def environment(self, task, resources):
        return Talking(task)

    def verifier(self, task):
        return "plugins.share_of_digits", {"symbols": "0123456789abcdefghijklmnopqrstuvwxyz"}

    def gold(self, task):
        return tuple(Message("assistant", digits) for digits in ("123", "4567", "89"))
