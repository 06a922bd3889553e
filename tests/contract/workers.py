"""An object for the executors' contract; lives in whatever an executor calls a worker."""

import asyncio
import os
import sys
import time

from temper.core.blame import FaultError


class Counter:
    def __init__(self, config):
        self.n = config["from"]

    def add(self, k):
        self.n += k
        return self.n

    async def add_later(self, k):
        await asyncio.sleep(0.01)
        return self.add(k)

    def echo(self, value):
        return value

    def sleep(self, seconds):
        time.sleep(seconds)

    async def wait(self, seconds):
        await asyncio.sleep(seconds)

    def end(self):
        sys.exit(3)

    def divide(self):
        return self.n // 0

    def blame(self):
        raise FaultError("engine-lost", "somewhere", "it is gone")

    def pid(self):
        return os.getpid()

    def threads(self):
        return os.environ.get("OMP_NUM_THREADS")
