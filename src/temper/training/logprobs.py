"""Log-probs of chosen tokens from hidden states, chunked, with memory flat in length and vocabulary.

Only the positions asked for are computed, in fp32 at least (fp64 stays). With p the softmax and W the head,
d log p(y) / d h = W[y] - p W needs no upstream gradient, so the forward computes it and the backward only scales: a
frozen head costs two products in all and no recompute, also for sequence-level losses. A head that is trained needs
p again, so its backward recomputes the logits of each chunk. Sharding over the vocabulary does not live here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 1 << 23  # logits at a time (32 MiB in fp32); twice or half as many were 5-15 % slower on 2 cores


def logprobs(
    hidden: Tensor, head: Tensor, targets: Tensor, temperature: float = 1.0, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden @ head.T / temperature)[targets] (K,), with gradient; and the entropy (K,), without.

    hidden: (K, D). head: (V, D). targets: int64 (K,).
    """
    return _LogProbs.apply(hidden, head, targets, temperature, entropy)


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        h, w = _wide(hidden) / temperature, _wide(head)
        found = h.new_empty(len(h))
        entropies = h.new_empty(len(h)) if entropy else None
        slope = torch.empty_like(h) if ctx.needs_input_grad[0] else None  # d log p / d h, (K, D)
        for at in _chunks(len(h), len(w)):
            logp = torch.log_softmax(h[at] @ w.T, dim=-1)  # (k, V)
            found[at] = logp.gather(1, targets[at, None])[:, 0]
            if entropies is None and slope is None:
                continue
            p = logp.exp()
            if entropies is not None:
                entropies[at] = -torch.linalg.vecdot(p, logp)
            if slope is not None:
                slope[at] = (w[targets[at]] - p @ w) / temperature
        ctx.save_for_backward(slope, hidden, head, targets)
        ctx.temperature = temperature
        if entropies is not None:
            ctx.mark_non_differentiable(entropies)
        return found, entropies

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        slope, hidden, head, targets = ctx.saved_tensors
        g_hidden = (grad[:, None] * slope).to(hidden.dtype) if slope is not None else None
        g_head = _head_gradient(grad, hidden, head, targets, ctx.temperature) if ctx.needs_input_grad[1] else None
        return g_hidden, g_head, None, None, None


def _head_gradient(grad: Tensor, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Sum of grad * (onehot(target) - p) h / temperature over the tokens (V, D)."""
    h, w = _wide(hidden) / temperature, _wide(head)
    total = torch.zeros_like(w)
    for at in _chunks(len(h), len(w)):
        p = torch.softmax(h[at] @ w.T, dim=-1).mul_(-grad[at, None])
        p.scatter_add_(1, targets[at, None], grad[at, None])
        total.addmm_(p.T, h[at])
    return total.to(head.dtype)


def _chunks(count: int, vocabulary: int) -> list[slice]:
    parts = max(1, -(-count * vocabulary // CHUNK))
    size = max(1, -(-count // parts))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
