"""The attention function that every policy uses: it hands queries, keys and values to the call's `layout`.

Registered with transformers under `NAME`, chosen by a model's own config, and told what to do by the keyword
`layout`, so that no global is changed. Trainer and engine differ in their layout alone: `Packed` (here) is the
trainer's, over token trees without padding; the engine's, over its cache, lives with the engine.

Attention over a tree is a sum of parts: a token's own segment causally, and each segment above it whole. Every part is
one call of a fused kernel, for all the queries below a segment at once; parts are joined by their log-sum-exps, which
is exact, and no key is copied. The backward calls the kernel's own backward for each part with the joined output and
log-sum-exp, so that it recomputes nothing besides what the kernel does. Source of the identity: the softmax over a
union of keys, as in FlashAttention (arXiv 2205.14135) and ring attention (arXiv 2310.01889).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

NAME = "temper"


class Layout(Protocol):
    """How the flattened tokens of one call see each other and what is cached."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query (1, H, T, D), key and value (1, G, T, D) with rotary positions applied -> (1, T, H, D)."""
        ...


def register() -> str:
    """Make the function known to transformers (idempotent); gives its name for `config._attn_implementation`."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)
    return NAME


class Packed:
    """Sequences, or trees of segments in depth-first order, one after another. Exact and differentiable.

    lengths: N segment lengths that sum to T. parents: for each the index of the segment before it, -1 for a root; a
    token sees its own segment causally and its ancestors whole. above: keys and values by layer, (1, G, P, D) each, of
    segments computed in earlier calls, all of which every token here sees whole. With `keep`, this call's keys and
    values stay in `kept` for calls below.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        parents: Sequence[int] | None = None,
        above: Sequence[dict[int, tuple[Tensor, Tensor]]] = (),
        keep: bool = False,
    ) -> None:
        up = [-1] * len(lengths) if parents is None else [int(p) for p in parents]
        assert len(up) == len(lengths), "one parent for each segment"
        self.above = above
        self.kept: dict[int, tuple[Tensor, Tensor]] | None = {} if keep else None
        self.parts = _parts([int(n) for n in lengths], up)
        whole = slice(0, sum(int(n) for n in lengths))
        self.parts += [_Part(whole, slice(None), False, source) for source in range(len(above))]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if self.kept is not None:
            self.kept.setdefault(layer, (key, value))  # those of the forward, also where a backward computes them again
        past = [x for kept in self.above for x in kept[layer]]
        return _Joined.apply(self.parts, scale, query, key, value, *past).transpose(1, 2)


class _Part(NamedTuple):
    """Queries `rows` over the keys `columns` of this call (source -1) or of an earlier one."""

    rows: slice
    columns: slice
    causal: bool
    source: int = -1


def _parts(lengths: Sequence[int], parents: Sequence[int]) -> list[_Part]:
    """Each segment over itself first, then whatever hangs below a segment over that segment."""
    last = list(range(len(lengths)))  # of each segment's subtree
    path: list[int] = []
    for i, parent in enumerate(parents):
        while path and path[-1] != parent:
            path.pop()
        assert parent == -1 or path, "segments are in depth-first order, a parent before its children"
        path.append(i)
        for above in path:
            last[above] = i
    ends = [0, *accumulate(lengths)]
    own = [slice(ends[i], ends[i + 1]) for i in range(len(lengths))]
    below = [(i, slice(ends[i + 1], ends[last[i] + 1])) for i in range(len(lengths)) if last[i] > i]
    return [_Part(rows, rows, True) for rows in own] + [_Part(rows, own[i], False) for i, rows in below]


class _Joined(torch.autograd.Function):
    """query (1, H, T, D); key, value (1, G, T, D); past: key and value of each earlier call -> (1, H, T, D)."""

    @staticmethod
    def forward(
        ctx: Any, parts: list[_Part], scale: float, query: Tensor, key: Tensor, value: Tensor, *past: Tensor
    ) -> Tensor:
        _, heads, tokens, width = query.shape
        out = query.new_empty(1, tokens, heads, width).transpose(1, 2)
        lse = query.new_empty(1, heads, tokens, dtype=torch.promote_types(query.dtype, torch.float32))
        for part in parts:
            k, v = _keys(part, key, value, past)
            found, weight = _kernel(query[:, :, part.rows], k, v, part.causal, scale)
            if part.causal:  # the first part of these rows
                out[:, :, part.rows], lse[:, :, part.rows] = found, weight
            else:
                _join(out[:, :, part.rows], lse[:, :, part.rows], found, weight)
        ctx.save_for_backward(query, key, value, out, lse, *past)
        ctx.parts, ctx.scale = parts, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, lse, *past = ctx.saved_tensors
        g_query, g_key, g_value = (torch.empty_like(x) for x in (query, key, value))
        g_past = [torch.zeros_like(x) for x in past]
        for part in ctx.parts:
            rows = part.rows
            k, v = _keys(part, key, value, past)
            dq, dk, dv = _kernel_backward(
                grad[:, :, rows], query[:, :, rows], k, v, out[:, :, rows], lse[:, :, rows], part.causal, ctx.scale
            )
            if part.causal:
                g_query[:, :, rows], g_key[:, :, rows], g_value[:, :, rows] = dq, dk, dv
                continue
            g_query[:, :, rows] += dq
            into_k, into_v = _keys(part, g_key, g_value, g_past)
            into_k += dk
            into_v += dv
        return None, None, g_query, g_key, g_value, *g_past


def _keys(part: _Part, key: Tensor, value: Tensor, past: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    if part.source >= 0:
        return past[2 * part.source], past[2 * part.source + 1]
    return key[:, :, part.columns], value[:, :, part.columns]


def _join(out: Tensor, lse: Tensor, more: Tensor, weight: Tensor) -> None:
    """Into `out` and `lse`: the attention over the union of both parts' keys."""
    total = torch.logaddexp(lse, weight)
    out.mul_((lse - total).exp()[..., None].to(out.dtype)).add_(more * (weight - total).exp()[..., None].to(out.dtype))
    lse.copy_(total)


def _kernel(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Attention (1, H, T, D) and its log-sum-exp (1, H, T)."""
    if query.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, scale=scale)
    return _plain(query, key, value, causal, scale)


def _plain(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """The same in plain tensor operations, on any device."""
    scores = _scores(query, key, causal, scale)
    lse = scores.logsumexp(-1)
    return _grouped((scores - lse[..., None]).exp().to(query.dtype), value), lse


def _kernel_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value where `out` and `lse` are those of all parts together."""
    if query.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, query, key, value, out, lse, 0.0, causal, scale=scale
        )
    return _plain_backward(grad, query, key, value, out, lse, causal, scale)


def _plain_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    group = query.shape[1] // key.shape[1]
    p = (_scores(query, key, causal, scale) - lse[..., None]).exp()  # (1, H, T, S)
    g = grad.to(p.dtype)
    g_value = (p.transpose(-1, -2) @ g).unflatten(1, (-1, group)).sum(2)
    delta = (g * out.to(p.dtype)).sum(-1, keepdim=True)
    s = p * (_grouped(g, value.transpose(-1, -2).to(p.dtype)) - delta) * scale
    g_key = (s.transpose(-1, -2) @ query.to(p.dtype)).unflatten(1, (-1, group)).sum(2)
    g_query = _grouped(s, key.to(p.dtype))
    return g_query.to(query.dtype), g_key.to(key.dtype), g_value.to(value.dtype)


def _scores(query: Tensor, key: Tensor, causal: bool, scale: float) -> Tensor:
    """(1, H, T, S) in fp32 at least, -inf where a query does not see."""
    scores = (_grouped(query, key.transpose(-1, -2)) * scale).to(torch.promote_types(query.dtype, torch.float32))
    if not causal:
        return scores
    return scores.masked_fill(~lower_right(query.shape[2], key.shape[2], query.device), -torch.inf)


def _grouped(x: Tensor, y: Tensor) -> Tensor:
    """x (1, H, M, K) @ y (1, G, K, N), each of the G heads serving H / G in turn."""
    return (x.unflatten(1, (y.shape[1], -1)) @ y[:, :, None]).flatten(1, 2)


def lower_right(rows: int, columns: int, device: torch.device) -> Tensor:
    """(rows, columns) bool: the last `rows` of `columns` positions, each seeing itself and all before it."""
    return torch.ones(rows, columns, dtype=torch.bool, device=device).tril(columns - rows)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    *,
    layout: Layout,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    return layout.attend(module.layer_idx, query, key, value, scaling), None
