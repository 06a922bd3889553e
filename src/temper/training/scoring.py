"""What a policy says of given rows, without gradient: log-probs and values of their trained tokens, in their own order.

The same packing and forward as a step's, so that a reference policy, a proximal one, a teacher or a value model is
measured exactly as the policy that is trained. `lent` lets a policy hold other weights for a while.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from temper.core.trace import MicroBatch
from temper.models.attention import Packed
from temper.models.policy import Policy
from temper.models.scalar import ScalarHead
from temper.training.logprobs import logprobs
from temper.training.packing import Row, pack

Weights = Mapping[str, Tensor]
Kept = dict[int, tuple[Tensor, Tensor]]  # keys and values by layer
Above = tuple[Kept, Tensor]  # of a segment, with its last hidden state (1, D)


class Scored(Struct, frozen=True, eq=False):
    """Of a row: log-probs and values float32 (n,), 0 where it is not trained; values only with a head."""

    logprobs: np.ndarray
    values: np.ndarray | None = None


@torch.no_grad()
def score(
    policy: Policy, rows: Sequence[Row], cap: int, *, temperature: float = 1.0, scalar: ScalarHead | None = None
) -> list[Scored]:
    """Score the trained tokens of each row. Raises ConfigError for a row above the cap, as `pack` does."""
    found = [
        Scored(np.zeros(len(r.ids), np.float32), np.zeros(len(r.ids), np.float32) if scalar else None) for r in rows
    ]
    asked = [_labelled(row, i) for i, row in enumerate(rows) if row.trained.any()]
    for batch, wanted in predicted(policy, pack(asked, cap)):
        row, token = (batch.streams[name].astype(np.int64) for name in ("row", "token"))
        targets = torch.from_numpy(batch.targets).to(wanted.device)
        columns = [(logprobs(wanted, policy.head, targets, temperature)[0], "logprobs")]
        if scalar is not None:
            columns.append((scalar(wanted), "values"))
        for values, name in columns:
            for r, t, value in zip(row, token, values.float().cpu().numpy(), strict=True):
                getattr(found[r], name)[t] = value
    return found


@contextlib.contextmanager
def lent(policy: Policy, weights: Weights | None) -> Iterator[None]:
    """The policy holds `weights` inside the block, and its own again after it. None: nothing changes."""
    if weights is None:
        yield
        return
    own = snapshot(policy)
    policy.load_trainable(weights)
    try:
        yield
    finally:
        policy.load_trainable(own)


def snapshot(policy: Policy) -> dict[str, Tensor]:
    """A copy of what is trained: a reference policy over the same frozen base costs no more than its adapter."""
    return {name: p.detach().clone() for name, p in policy.trainable().items()}


def _labelled(row: Row, index: int) -> Row:
    """The row with the one weight and the two labels that scoring needs."""
    n = len(row.ids)
    streams = {"w_score": row.trained.astype(np.float32), "row": np.full(n, index), "token": np.arange(n)}
    return replace(row, streams=streams)


def predicted(
    policy: Policy, batches: Sequence[MicroBatch], above: Sequence[Above] = ()
) -> Iterator[tuple[MicroBatch, Tensor]]:
    """Each micro-batch, those below included, with the hidden states that its predictions are made from (K, D)."""
    for batch in batches:
        wanted, hidden, kept = forward(policy, batch, above)
        if len(wanted):
            yield batch, wanted
        if batch.below:
            yield from predicted(policy, batch.below, [*above, (kept, hidden[-1:])])


def forward(
    policy: Policy, batch: MicroBatch, above: Sequence[Above], recompute: bool = False
) -> tuple[Tensor, Tensor, Kept]:
    """The states that a micro-batch's own predictions are made from (K, D), all (T, D), and what those below it see."""
    layout = Packed(batch.lengths, batch.parents, [kept for kept, _ in above], keep=bool(batch.below))
    ids, positions = (torch.from_numpy(x).to(policy.base.device) for x in (batch.ids, batch.positions))
    hidden = policy.hidden(ids, positions, layout, recompute)
    before = [above[-1][1]] if above else []  # its index is -1 + 1
    at = torch.from_numpy(batch.at + len(before)).to(hidden.device)
    # index_select's backward is deterministic, that of hidden[...] is not
    return torch.cat([*before, hidden]).index_select(0, at), hidden, layout.kept or {}
