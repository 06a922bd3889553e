"""The attention function that every policy uses: it hands queries, keys and values to the call's `layout`.

Registered with transformers under `NAME`, chosen by a model's own config, and told what to do by the keyword
`layout`, so that no global is changed. Trainer and engine differ in their layout alone: `Packed` (here) is the
trainer's, over token trees without padding; the engine's, over its cache, lives with the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

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
    """Sequences, or trees of segments, one after another. Exact and differentiable on any device.

    lengths: N segment lengths that sum to T. parents: for each the index of the segment before it, -1 for a root; a
    token sees its own segment causally and its ancestors whole. One SDPA call a segment: at our sizes the calls cost
    less than the padding of a batched one, and `split` has one concatenation as its backward.
    """

    def __init__(self, lengths: Sequence[int], parents: Sequence[int] | None = None) -> None:
        self.lengths = [int(n) for n in lengths]
        up = [-1] * len(self.lengths) if parents is None else [int(p) for p in parents]
        assert len(up) == len(self.lengths), "one parent for each segment"
        assert all(parent < i for i, parent in enumerate(up)), "a parent comes before its child"
        self.ancestors: list[list[int]] = []  # of each segment, root first
        for parent in up:
            self.ancestors.append([*self.ancestors[parent], parent] if parent >= 0 else [])

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        queries, keys, values = (x.split(self.lengths, dim=2) for x in (query, key, value))
        outputs = []
        for i, above in enumerate(self.ancestors):
            if not above:
                outputs.append(sdpa(queries[i], keys[i], values[i], is_causal=True, scale=scale, enable_gqa=True))
                continue
            k, v = (torch.cat([x[j] for j in (*above, i)], dim=2) for x in (keys, values))
            mask = lower_right(self.lengths[i], k.shape[2], query.device)
            outputs.append(sdpa(queries[i], k, v, attn_mask=mask, scale=scale, enable_gqa=True))
        return torch.cat(outputs, dim=2).transpose(1, 2)


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
