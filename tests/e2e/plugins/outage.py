"""A domain whose backend is down for its first twelve episodes of training, and at every seventh one later."""

from itertools import count

from plugins.digits import Digits
from temper.core.blame import FaultError
from temper.rollouts.environments import ChatEnvironment


def create(config):
    return Outage()


class Outage(Digits):
    name = "plugins.outage"

    def __init__(self):
        self.episodes = count()

    def environment(self, task, resources):
        episode = next(self.episodes) if task.split == "train" else 13
        return Down(task) if episode < 12 or episode % 7 == 0 else ChatEnvironment(task)


class Down(ChatEnvironment):
    async def start(self):
        raise FaultError("backend-lost", "outage", "the backend is down")
