"""What a rank above 0 does: it holds the same policies and trainers as rank 0, and does what it is told with them.

`python -m temper.training.parallel.follower SECONDS` is one that `world.company` starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from temper.core.errors import TemperError
from temper.models.load import load
from temper.models.policy import Policy
from temper.store import codec
from temper.training.parallel.sharded import Made, ShardedPolicy
from temper.training.parallel.world import LIMIT, Order, World, joined
from temper.training.trainer import Config, Trainer


def followed() -> bool:
    """Whether torchrun started this process as a rank above 0, which then has been done with."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or os.environ["RANK"] == "0":
        return False
    main()
    return True


class Follower:
    """A rank that an executor's worker is (`runs.ranks`). `given`: the variables that torchrun would have set."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = given

    def follow(self) -> None:
        with joined(given=self._given) as world:
            assert world is not None
            follow(world)


def follow(world: World) -> None:
    """Until the end of the world. Raises BackendError and DeadlineError when another rank is gone, by name."""
    things: dict[int, Any] = {}
    for order in world.orders():
        for number in things.keys() - order.held:
            del things[number]
        with world.act(order):
            _do(order, things)


def _do(order: Order, things: dict[int, Any]) -> None:
    thing = things.get(order.number)
    if order.do == "policy":
        things[order.number] = _policy(codec.decode(order.spec, Made))
    elif order.do == "train":
        policy, config = codec.decode(order.spec, tuple[int, Config])
        things[order.number] = Trainer(things[policy], config)
    elif order.do in ("step", "accumulate"):
        thing.version = order.version
        getattr(thing, order.do)(order.batches)
    elif order.do in ("load", "save"):
        getattr(thing, order.do)(order.folder)
    else:  # a sharded policy's
        getattr(thing, order.do)()


def _policy(made: Made) -> Policy:
    device = f"cuda:{torch.cuda.current_device()}" if made.device == "cuda" else made.device
    if made.sharded:  # which keeps its rows of the base alone
        return ShardedPolicy(Policy(load(made.base, made.dtype, device), made.adapter, trainable=True))
    return Policy(_base(made.base, made.dtype, device), made.adapter, trainable=True)


_base = cache(load)


def main(seconds: float = LIMIT) -> None:
    try:
        with joined(seconds) as world:
            assert world is not None
            follow(world)
    except TemperError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(float(sys.argv[1]))
