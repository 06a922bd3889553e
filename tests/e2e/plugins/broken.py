"""A domain whose world cannot be built."""

from plugins.digits import Digits


def create(config):
    return Broken()


class Broken(Digits):
    name = "plugins.broken"

    def environment(self, task, resources):
        return World()


class World:
    async def start(self):
        raise RuntimeError("the world is missing")

    async def close(self):
        pass
