"""Workers that are actors of a Ray cluster, on any of its nodes. Needs the extra `temper-rl[ray]`.

Ray is imported here and nowhere else. The cluster is the one at `address`, as `ray start` gives it; without an address
one of this machine alone is started in this process, and ends with it. Every node needs Temper and the packages of our
plugins, in the same versions.

Ray places workers, moves frames and notices what has died. It never starts a worker or a call again: a call runs at
most once, and what is tried again, and where, our own policy decides. Frames are bytes, which Ray does not pickle.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from temper.core.errors import BackendError, MissingError, RefusedError
from temper.scheduling.executors.hosted import Channel, Hosted, Workers

_NAMES = {"cpus": "CPU", "gpus": "GPU"}  # ours, and Ray's; other resources are called as the cluster calls them


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`address`: HOST:PORT of the cluster's head, or "auto" on one of its nodes; "" for a cluster in this process."""

    address: str = ""


def create(config: Config | None = None) -> Cluster:
    """Raises MissingError without Ray, BackendError when there is no cluster at the address."""
    try:
        import ray
    except ModuleNotFoundError:
        raise MissingError("workers on a cluster need Ray: pip install 'temper-rl[ray]'") from None
    address = (config or Config()).address
    ours = not ray.is_initialized()
    if ours:
        alone: dict[str, Any] = {} if address else {"include_dashboard": False}
        try:
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **alone)
        except (ConnectionError, ValueError) as error:
            raise BackendError(f"no Ray cluster at {address!r}: {error}; start one with `ray start --head`") from None
    return Cluster(ray, ours)


class Cluster(Workers):
    """`ours`: this process joined Ray for it, and leaves with its close."""

    def __init__(self, ray: Any, ours: bool) -> None:
        super().__init__(self._open, gives=())
        self._ray, self._ours = ray, ours
        self._actor = ray.remote(max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD")(_Actor)

    async def close(self) -> None:
        await super().close()
        if self._ours:
            self._ray.shutdown()

    async def _open(self, resources: Mapping[str, float]) -> Channel:
        """Waits, in the first call, until a node has the resources free. Raises RefusedError when none ever has."""
        wanted = {_NAMES.get(name, name): amount for name, amount in resources.items() if amount}
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
            asked = ", ".join(f"{name}={amount:g}" for name, amount in resources.items())
            raise RefusedError(f"none of the {len(nodes)} nodes of this Ray cluster has {asked}; see `ray status`")
        cpus, gpus = wanted.pop("CPU", 0), wanted.pop("GPU", 0)
        actor = self._actor.options(num_cpus=cpus, num_gpus=gpus, resources=wanted)
        return _Remote(self._ray, actor.remote([entry for entry in sys.path if entry]))


class _Remote:
    """A `Channel`."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self._how = ""

    async def exchange(self, frame: bytes) -> bytes:
        try:
            return await self._actor.exchange.remote(frame)
        except self._ray.exceptions.RayError as error:  # of the actor, its node, or the way there
            self._how = self._how or " ".join(str(error).split())
            raise EOFError from error

    async def end(self) -> str:
        self._ray.kill(self._actor)
        return self._how


class _Actor:
    """The far end, in a process of Ray's on some node. `paths`: where the owner finds modules, should they be there."""

    def __init__(self, paths: list[str]) -> None:
        sys.path += [path for path in paths if path not in sys.path]
        self._hosted = Hosted(asyncio.Runner().run)

    def exchange(self, frame: bytes) -> bytes:
        return self._hosted.answer(frame)
