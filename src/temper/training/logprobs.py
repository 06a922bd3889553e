"""Log-probs of chosen tokens from hidden states, chunked, with memory flat in length and vocabulary.

Only the positions asked for are computed, in fp32 at least (fp64 stays). With p the softmax, W the head and q what is
wanted, d (sum_k q_k log p_k) / d h = (q - |q| p) W needs no upstream gradient, so the forward computes it and
the backward only scales it, in place: a frozen head costs two products in all and no recompute, also for
sequence-level losses; a graph can be gone through once. So it is with the entropy H, where -p (log p + H) takes the
place of q - |q| p. A head that is trained needs p again, so its backward
recomputes the logits of each chunk. Sharding over the vocabulary does not live here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 1 << 23  # logits at a time (32 MiB in fp32); twice or half as many were 5-15 % slower for a head of 49 K rows
ROWS = 192  # tokens at a time at least: fewer read the head too often (55 of a head of 152 K rows: 1.6 times slower)


def logprobs(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    temperature: float = 1.0,
    entropy: bool = False,
    entropy_trained: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden @ head.T / temperature)[targets] (K,), with gradient; and the entropy (K,), where wanted with.

    hidden: (K, D). head: (V, D). targets: int64 (K,).
    """
    which = 2 if entropy_trained else int(entropy)
    found, entropies = _LogProbs.apply(hidden, head, targets[:, None], None, temperature, which)
    return found, entropies


def soft_logprobs(hidden: Tensor, head: Tensor, ids: Tensor, shares: Tensor, temperature: float = 1.0) -> Tensor:
    """sum_k shares_k log softmax(hidden @ head.T / temperature)[ids_k] (K,), with gradient.

    ids: int64 (K, k), the same token at most once in a row. shares: (K, k).
    """
    return _LogProbs.apply(hidden, head, ids, shares, temperature, 0)[0]


class _LogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        targets: Tensor,
        shares: Tensor | None,
        temperature: float,
        entropy: int,
    ) -> tuple[Tensor, Tensor | None]:
        """`entropy`: 0 none, 1 its value, 2 with gradient."""
        w = _wide(head)
        found = w.new_empty(len(hidden))
        entropies = torch.empty_like(found) if entropy else None
        slope = w.new_empty(hidden.shape) if ctx.needs_input_grad[0] else None  # d value / d h, (K, D)
        steep = w.new_empty(hidden.shape) if ctx.needs_input_grad[0] and entropy == 2 else None  # d entropy / d h
        for at in _chunks(len(hidden), len(w)):
            q = _shares(shares, targets, at, w)
            logp = torch.log_softmax(_wide(hidden[at]) / temperature @ w.T, dim=-1)  # (k, V)
            found[at] = torch.linalg.vecdot(q, logp.gather(1, targets[at]))
            if entropies is None and slope is None:
                continue
            if entropies is None:
                p = logp.exp_()
            else:
                p = logp.exp()
                entropies[at] = -torch.linalg.vecdot(p, logp)
                if steep is not None:
                    torch.mm(_spread(p, logp, entropies[at]), w, out=steep[at])
            if slope is not None:
                torch.mm(_against(p, q, targets[at]), w, out=slope[at])
        ctx.slope, ctx.steep = slope, steep
        ctx.save_for_backward(hidden, head, targets, shares)
        ctx.temperature, ctx.entropy = temperature, entropy
        if entropies is not None and entropy < 2:
            ctx.mark_non_differentiable(entropies)
        return found, entropies

    @staticmethod
    def backward(ctx: Any, grad: Tensor, of_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, head, targets, shares = ctx.saved_tensors
        of_entropy = of_entropy if ctx.entropy == 2 else None
        g_hidden = None
        if ctx.needs_input_grad[0]:
            assert ctx.slope is not None, "the backward of log-probs can run only once"
            g_hidden, ctx.slope = ctx.slope.mul_(grad[:, None] / ctx.temperature), None
            if of_entropy is not None:
                g_hidden.addcmul_(ctx.steep, of_entropy[:, None] / ctx.temperature)
            g_hidden = g_hidden.to(hidden.dtype)
        if not ctx.needs_input_grad[1]:
            return g_hidden, None, None, None, None, None
        w = _wide(head)
        g_head = torch.zeros_like(w)
        for at in _chunks(len(hidden), len(w)):
            h = _wide(hidden[at]) / ctx.temperature
            logits = h @ w.T
            p = torch.softmax(logits, dim=-1)
            if of_entropy is not None:
                logp = torch.log_softmax(logits, dim=-1)
                spread = _spread(p, logp, -torch.linalg.vecdot(p, logp))
                g_head.addmm_(spread.T, h * of_entropy[at, None])
            g_head.addmm_(_against(p, _shares(shares, targets, at, w), targets[at]).T, h * grad[at, None])
        return g_hidden, g_head.to(head.dtype), None, None, None, None


def _shares(shares: Tensor | None, targets: Tensor, at: slice, like: Tensor) -> Tensor:
    """(k, n), 1 where none are given."""
    return like.new_ones(len(targets[at]), 1) if shares is None else shares[at].to(like.dtype)


def _against(p: Tensor, q: Tensor, targets: Tensor) -> Tensor:
    """q - |q| p (k, V), in place of p."""
    return p.mul_(-q.sum(1, keepdim=True)).scatter_add_(1, targets, q)


def _spread(p: Tensor, logp: Tensor, entropies: Tensor) -> Tensor:
    """-p (log p + H) (k, V)."""
    return (logp + entropies[:, None]).mul_(p).neg_()


def _chunks(count: int, vocabulary: int) -> list[slice]:
    parts = max(1, -(-count // max(ROWS, CHUNK // vocabulary)))
    size = max(1, -(-count // parts))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
