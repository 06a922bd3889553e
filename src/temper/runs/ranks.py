"""Training ranks that an executor's workers are: Ray's actors, or processes. The driver is rank 0.

They are told by the variables that torchrun sets, and from there on all is as under torchrun.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncGenerator
from concurrent.futures import Executor
from typing import Any

from msgspec import Struct, field

from temper.core import registry
from temper.core.config import Some
from temper.core.errors import ConfigError


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """count: all ranks. executor: a table with `kind`, or the kind. resources: of each rank but the driver.

    address: where the others find the driver's machine; its host name where none is given.
    """

    count: Some = 2
    executor: Any = "ray"
    resources: dict[str, float] = field(default_factory=lambda: {"cpus": 1.0})
    address: str = ""


@contextlib.asynccontextmanager
async def company(config: Config, compute: Executor) -> AsyncGenerator[None]:
    """A world of so many ranks. Raises what the executor does for resources that it has not."""
    from temper.training.parallel import world

    if world.current() is not None:
        raise ConfigError("torchrun has started ranks already: start the run without it, or without `ranks`")
    _kept, (mine, *others) = world.invited(config.count, config.address or socket.gethostname())
    module, settings = registry.configure("scheduling.executors", config.executor)
    executor = module.create(settings)
    following: list[asyncio.Task[None]] = []
    try:
        for given in others:
            worker = await executor.spawn("temper.training.parallel.follower:Follower", given, config.resources)
            following.append(asyncio.create_task(worker.call("follow", seconds=math.inf)))
        with contextlib.ExitStack() as stack:
            start = asyncio.get_running_loop().run_in_executor
            await start(compute, stack.enter_context, world.joined(given=mine))
            yield
    finally:
        await executor.close()
        await asyncio.gather(*following, return_exceptions=True)
