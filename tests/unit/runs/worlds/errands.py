"""Tasks whose world does what `start` says: answer, nap until a file is there (before it begins, or after the second
turn), kill the process it is in, or raise."""

import asyncio
import os
import signal
from pathlib import Path

from temper.core.blame import FaultError
from temper.core.protocols import Observation
from temper.core.task import Message, Task
from temper.rollouts.environments import ChatEnvironment


def task(n, does="answer", **more):
    start = {"does": does, **more}
    messages = (Message("user", f"errand {n}"),)
    return Task(id=f"errand-{n}", domain="worlds.errands", messages=messages, start=start, reference={"answer": "done"})


def create(config):
    return Errands()


class Errands:
    name = "worlds.errands"
    levels = (1,)

    def environment(self, task, resources):
        if task.start["does"] == "raise":
            raise LookupError("there is no such errand")
        return Errand(task)

    def verifier(self, task):
        return "exact", {}

    def gold(self, task):
        return (Message("assistant", "done"),)


class Errand(ChatEnvironment):
    turns = 0

    async def start(self):
        does = self.task.start["does"]
        if does == "fail":
            raise FaultError("backend-lost", "errands", f"in process {os.getpid()}")
        if does == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if does == "nap":
            await self._nap()
        return await super().start()

    async def step(self, action):
        if self.task.start["does"] != "talk":
            return await super().step(action)
        self.turns += 1
        if self.turns == 1:
            return Observation((Message("user", "go on"),))
        await self._nap()
        return Observation(done=True)

    async def _nap(self):
        Path(self.task.start["begun"]).touch()
        while not Path(self.task.start["until"]).exists():
            await asyncio.sleep(0.01)

    async def close(self):
        if self.task.start["does"] == "nap":
            Path(self.task.start["closed"]).touch()
