"""A policy whose weights, frozen ones too, are spread over the ranks by rows, and gathered layer by layer (FSDP2).

Rank 0 uses it as any policy: `trainable` gathers, `load_trainable` scatters, and `hidden` outside a trainer's step has
the other ranks compute along. In a step every rank makes the same calls in the same order (`packing.deal`), since each
gathers. Embedding, head and last norm stay gathered from a step's first forward to its end, because losses use the head
outside any layer, and a tree's earlier forwards are still open while later ones go back.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor, nn

from temper.core.errors import ConfigError, RefusedError
from temper.models.attention import Layout, Packed
from temper.models.lora import LoraConfig
from temper.models.policy import Policy
from temper.store import codec
from temper.training.parallel import world as ranks
from temper.training.parallel.world import Order


class Made(Struct, frozen=True, kw_only=True):
    """How rank 0 made a policy, but for its weights."""

    base: str
    dtype: str
    device: str
    adapter: LoraConfig | None
    sharded: bool

    @staticmethod
    def of(policy: Policy, sharded: bool) -> Made:
        like = policy.head
        dtype = str(like.dtype).removeprefix("torch.")
        return Made(
            base=policy.base.name, dtype=dtype, device=like.device.type, adapter=policy.adapter, sharded=sharded
        )


def spread(policy: Policy) -> Policy:
    """The policy over all ranks of the world; itself where there is one."""
    return policy if ranks.current() is None else ShardedPolicy(policy)


class ShardedPolicy(Policy):
    """Takes over a trainable `policy`, on every rank at once. `rows`: this rank's part of each trained parameter."""

    def __init__(self, policy: Policy) -> None:
        vars(self).update(vars(policy))
        world = ranks.current()
        assert world is not None, "spread() makes these where there are ranks"
        self._world, self._number, spec = world, -1, b""
        if world.rank == 0:
            self._number, spec = world.add(self), codec.encode(Made.of(policy, sharded=True))
        with world.act(Order("policy", self._number, spec=spec)):
            world.send(p.detach() for p in self._owned.values())
            self._shard()
        with torch.no_grad():
            self.rows = {name: nn.Parameter(p.to_local()) for name, p in self._owned.items()}  # type: ignore[operator]
        if world.rank:  # rank 0's engine needs the whole base, nobody else does
            self.base = replace(self.base, tensors={"": torch.empty(0, device=self.base.device)})

    @property
    def head(self) -> Tensor:
        """Whole after a forward."""
        return getattr(self.body, "lm_head", self.body.embed_tokens.weight)

    def hidden(self, ids: Tensor, positions: Tensor, layout: Layout, recompute: bool = False) -> Tensor:
        if torch.is_grad_enabled() and not self._world.acting:
            raise RefusedError("a sharded policy has gradients inside a trainer's step alone: use Trainer.accumulate")
        with self._world.act(Order("along", self._number)):
            return self.body.flow(ids, positions, layout, recompute)

    @torch.no_grad()
    def along(self) -> None:
        """A forward on this rank, for one that rank 0 needs."""
        nothing = torch.zeros(1, dtype=torch.int64, device=self.base.device)
        self.hidden(nothing, nothing, Packed([1]))

    @torch.no_grad()
    def trainable(self) -> dict[str, nn.Parameter]:
        """Whole, and copies; nothing on other ranks than 0."""
        found = {}
        with self._world.act(Order("trainable", self._number)):
            for name, p in self._owned.items():
                whole = p.full_tensor()  # type: ignore[operator]
                if self._world.rank == 0:
                    found[name] = whole
        return found

    @torch.no_grad()
    def load_trainable(self, weights: Mapping[str, Tensor] = MappingProxyType({})) -> None:
        """Rank 0's `weights` into every rank's rows; what other ranks give is not looked at."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        first = self._world.rank == 0
        if first and (odd := weights.keys() ^ self._owned.keys()):
            raise ConfigError(f"weights do not fit this policy: {len(odd)} names differ, such as {min(odd)}")
        with self._world.act(Order("load_trainable", self._number)):
            for name, p in self._owned.items():
                assert isinstance(p, DTensor)
                mine = self.rows[name]
                whole = weights[name].to(mine) if first else mine.new_empty(p.shape)
                mine.copy_(distribute_tensor(whole, p.device_mesh, p.placements).to_local())
            self.body.reshard()

    def last(self) -> list[Tensor]:
        """The next backward sums the gradients of all those before it over the ranks.

        It is to begin from what this gives too, since all ranks must have gradients of the same parameters, and a
        rank's micro-batches may not have reached the head.
        """
        self.body.set_requires_gradient_sync(True)
        return [self.head[0].sum() * 0] if self.head.requires_grad else []

    def settle(self) -> None:
        """After a step's backwards: gradients of `rows` are in place, and nothing is gathered any more."""
        for name, p in self._owned.items():
            self.rows[name].grad = None if p.grad is None else p.grad.to_local()  # type: ignore[operator]
            p.grad = None
        self.body.set_requires_gradient_sync(False)
        self.body.reshard()

    def _shard(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

        body = self.body
        if self._head is not None:
            body.lm_head, self._head = self._head, None
        mesh = init_device_mesh(self.base.device.type, (self._world.size,))
        half = next(body.parameters()).dtype in (torch.bfloat16, torch.float16)
        precision = MixedPrecisionPolicy(reduce_dtype=torch.float32 if half else None)
        for module in [*body.layers, body]:
            fully_shard(module, mesh=mesh, mp_policy=precision)
            assert isinstance(module, FSDPModule)
            module.set_gradient_divide_factor(1.0)  # a sum: weights are shares of global counts
            module.set_force_sum_reduction_for_comms(True)
        body.set_requires_gradient_sync(False)
        body.set_reshard_after_backward(False, recurse=False)
        plain = super().hidden
        body.flow = lambda *given: plain(*given).clone()  # FSDP2 hooks itself to what comes out, which may be no view
        register_fsdp_forward_method(body, "flow")
        found = {("" if n == "lm_head" else "model.") + n: p for n, p in body.named_parameters()}
        self._owned = {name: found["lm_head" if name == "lm_head.weight" else name] for name in self._owned}
