"""Steps whose numbers do not depend on what else is in them: bit for bit the same, alone or in a crowd.

Matrix products of another shape round otherwise, and so a batch of another size, a prefix that happened to be cached or
a prompt that was cut elsewhere changes log-probs in their last bits, and in time a token. Here all tokens, those of
prompts too, go through the model in tiles of exactly `TILE` (short ones are padded), and each attends as a decoding
one does: over so many keys as its own position says, a power of two, masked beyond it. What comes out at a token is a
function of the tokens before it and of the weights, on one machine and number of threads. That products of one shape
treat all rows alike is the library's doing, not ours: `check` tries it.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from temper.core.errors import RefusedError
from temper.core.protocols import SamplingParams
from temper.engines.torch.rows import Rows, Staged
from temper.engines.torch.scheduler import Plan, Request
from temper.models.policy import Policies, Policy

TILE = 32  # tokens; products of fewer rows read the weights too often
_SMALLEST = 64  # keys


class Lanes(Rows):
    """Every request has a tensor of its own, as long as it may become, and none is ever moved."""

    def stage(self, request: Request) -> None:
        if request.row is None:
            request.row = Staged(self.shape, _reach(request.limit - 1))
            request.row.data.zero_()  # masked garbage could be NaN

    shelve = stage


def forward(policies: Policies, rows: Rows, plan: Plan) -> Tensor:
    """Final hidden states (T, D) of the step's tokens: decoding requests first, then the chunks."""
    parts = [(r, r.computed, 1) for r in plan.decode] + [(r, r.computed, n) for r, n in plan.chunks]
    for request, _, _ in parts:
        rows.stage(request)
    tokens = [(request, at) for request, start, n in parts for at in range(start, start + n)]
    whose: dict[str, list[int]] = {}
    for index, (request, _) in enumerate(tokens):
        whose.setdefault(request.policy, []).append(index)
    found = []
    for name, mine in whose.items():
        for start in range(0, len(mine), TILE):
            found.append(_tile(policies.by_name[name], rows, [tokens[i] for i in mine[start : start + TILE]]))
    back = torch.tensor([i for mine in whose.values() for i in mine]).argsort()
    return torch.cat(found)[back.to(rows.shape.device)]


@torch.inference_mode()
def check(policies: Policies, rows: Rows) -> None:
    """Raise RefusedError where a token's numbers depend on its row in a tile, or on the tokens beside it."""
    ids = np.arange(TILE, dtype=np.int32) * 7919 % len(policies.by_name[""].head)

    def logits(order: np.ndarray) -> Tensor:
        plan = Plan([], [Request("", ids[i : i + 1], SamplingParams(max_tokens=1), _SMALLEST) for i in order], [])
        return forward(policies, rows, plan) @ policies.by_name[""].head.T

    there, back = logits(np.arange(TILE)), logits(np.arange(TILE)[::-1]).flip(0)
    if not torch.equal(there, back):
        raise RefusedError(
            f"batch_invariant: with this model and machine a token's logits depend on its row in a batch, by up to "
            f"{float((there - back).abs().max()):.1e}; a deterministic run cannot be had here"
        )


def _tile(policy: Policy, rows: Rows, tokens: list[tuple[Request, int]]) -> Tensor:
    """Hidden states of at most `TILE` tokens of one policy."""
    ids, positions = torch.zeros(2, TILE, dtype=torch.int64)
    for row, (request, at) in enumerate(tokens):
        ids[row], positions[row] = int(request.tokens[at]), at
    device = rows.shape.device
    return policy.hidden(ids.to(device), positions.to(device), _Tile(tokens, rows))[: len(tokens)]


def _reach(at: int) -> int:
    """Keys that a token at this position attends over, most of them masked where it is short."""
    return max(_SMALLEST, 1 << at.bit_length())


class _Tile:
    """`models.attention.Layout` of a tile; the rows beyond its tokens are padding.

    A run: tokens that follow each other in one request and attend over as many keys. Its mask is (n, 1, 1, reach).
    """

    def __init__(self, tokens: list[tuple[Request, int]], rows: Rows) -> None:
        self.runs: list[tuple[Request, slice, slice, Tensor]] = []  # whose, its rows, its positions, its mask
        start = 0
        for (request, reach), members in groupby(tokens, lambda token: (token[0], _reach(token[1]))):
            at = [position for _, position in members]
            beyond = torch.arange(reach) > torch.tensor(at)[:, None]
            mask = torch.zeros(len(at), reach, dtype=rows.shape.dtype).masked_fill_(beyond, float("-inf"))
            part, own = slice(start, start + len(at)), slice(at[0], at[-1] + 1)
            self.runs.append((request, part, own, mask[:, None, None].to(rows.shape.device)))
            start += len(at)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See `models.attention.Layout`. Heads of a group share keys: they are the rows of a token's query."""
        out = torch.zeros_like(query.transpose(1, 2))  # (1, TILE, H, D)
        groups = key.shape[1]
        for request, part, own, mask in self.runs:
            keys, values = request.row.data[layer]  # (G, capacity, D)
            keys[:, own], values[:, own] = key[0, :, part], value[0, :, part]
            q = query[0, :, part].transpose(0, 1).unflatten(1, (groups, -1))  # (n, G, H / G, D)
            k, v = (x[None, :, : mask.shape[3]].expand(len(q), -1, -1, -1) for x in (keys, values))
            out[0, part] = sdpa(q, k, v, attn_mask=mask, scale=scale).flatten(1, 2)
        return out
