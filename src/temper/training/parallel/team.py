"""What a trainer asks of the ranks: who computes what, and sums over all of them. There may be one.

A step on several ranks: rank 0 deals the micro-batches, each rank adds up its gradients, the ranks meet (with their
metrics), gradients are summed, and every rank updates what it holds.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from msgspec import Struct
from torch import Tensor
from torch.nn import Parameter

from temper.core.trace import MicroBatch
from temper.models.policy import Policy
from temper.store import codec
from temper.training.optim import total_norm
from temper.training.packing import deal
from temper.training.parallel import world as ranks
from temper.training.parallel.sharded import Made, ShardedPolicy
from temper.training.parallel.world import Order


class Team:
    """A trainer's view of the world; made on every rank at once, with rank 0's weights.

    `first`: the rank that writes what is whole.
    """

    def __init__(self, policy: Policy, settings: Struct) -> None:
        self.world = world = ranks.current()
        self.sharded = policy if isinstance(policy, ShardedPolicy) else None
        self.size, self.first = (world.size, world.rank == 0) if world else (1, True)
        if world is None:
            return
        self.number, spec = -1, b""
        if self.first:
            if world.number(policy) < 0:
                with world.act(Order("policy", world.add(policy), spec=codec.encode(Made.of(policy, sharded=False)))):
                    pass
            self.number, spec = world.add(self), codec.encode((world.number(policy), settings))
        with world.act(Order("train", self.number, spec=spec)):
            if self.sharded is None:
                world.send(p.detach() for p in policy.trainable().values())

    @contextlib.contextmanager
    def act(
        self, do: str, batches: Sequence[MicroBatch] = (), folder: str = "", version: int = 0
    ) -> Iterator[Sequence[MicroBatch]]:
        """Do a method of the trainer on every rank; gives the micro-batches that are this rank's."""
        if self.world is None:
            yield batches
            return
        deals = self.first and not self.world.acting
        shares = deal(batches, self.size) if deals else []
        with self.world.act(Order(do, self.number, folder=folder, version=version), shares):
            yield shares[0] if deals else batches

    def parameters(self, policy: Policy) -> Mapping[str, Parameter]:
        """What of the policy this rank updates."""
        return self.sharded.rows if self.sharded else policy.trainable()

    def last(self) -> list[Tensor]:
        """The next backward is the last one of the step; what else it begins from."""
        return self.sharded.last() if self.sharded else []

    def total(self, parameters: Mapping[str, Parameter], mine: bytes) -> list[bytes]:
        """Sum each `.grad` over the ranks; what all of them brought."""
        if self.world is None:
            return [mine]
        if self.sharded:
            self.sharded.settle()
        copies = {k: p for k, p in parameters.items() if not self._spread(k)}
        reached = [k for k, p in copies.items() if p.grad is not None]
        frames = self.world.meet("the sum of gradients", codec.encode((reached, mine)))
        found = [codec.decode(frame, tuple[list[str], bytes]) for frame in frames]
        wanted = {k for names, _ in found for k in names}
        gradients = []
        for p in (p for k, p in copies.items() if k in wanted):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            gradients.append(p.grad)
        self.world.sum(gradients)
        return [theirs for _, theirs in found]

    def norm(self, gradients: Mapping[str, Tensor]) -> float:
        """Of all ranks' gradients together."""
        if self.world is None or self.sharded is None:
            return total_norm(gradients)
        mine, copies = ({k: g for k, g in gradients.items() if self._spread(k) is of} for of in (True, False))
        squares = torch.tensor(total_norm(mine), dtype=torch.float64) ** 2
        self.world.sum([squares])
        return math.hypot(math.sqrt(float(squares)), total_norm(copies) if copies else 0.0)

    def part(self, moments: Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
        """The file of moments that this rank writes: its name, "" where another rank writes all, and its content."""
        if self.world is None or self.sharded is None:
            return ("optimizer.safetensors" if self.first else ""), dict(moments)
        mine = {k: t for k, t in moments.items() if self.first or self._spread(k.partition(".")[2])}
        return f"optimizer-{self.world.rank + 1:05d}-of-{self.size:05d}.safetensors", mine

    def cut(self, moment: str, whole: Tensor) -> Tensor:
        """What this rank holds of a moment."""
        if self.world is None or not self._spread(moment.partition(".")[2]):
            return whole
        chunks = whole.chunk(self.size)  # as FSDP2 does
        return chunks[self.world.rank] if self.world.rank < len(chunks) else whole[:0]

    def _spread(self, name: str) -> bool:
        return self.sharded is not None and name in self.sharded.rows
