"""What a loss needs of whole sequences and of pairs: sums over their trained tokens, given back at each of them.

Streams used: `sequence` and `pair` (indices), `chosen` (+1 for the better sequence of a pair, -1 for the other),
`weight` (0: not trained, in no sum). The packer keeps a sequence, and the stage's families a pair, in one micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def total(values: Tensor, streams: Mapping[str, Tensor]) -> Tensor:
    """Sum of `values` (K,) over the trained tokens of each sequence, at each token (K,)."""
    return _added(values * (streams["weight"] != 0), streams["sequence"])


def mean(values: Tensor, streams: Mapping[str, Tensor]) -> Tensor:
    """Mean of `values` (K,) over the trained tokens of each sequence, at each token (K,)."""
    return total(values, streams) / total(torch.ones_like(values), streams).clamp(min=1)


def margin(values: Tensor, streams: Mapping[str, Tensor]) -> Tensor:
    """Sum of `values` over the chosen sequence minus that over the rejected one, at each token of the pair (K,)."""
    chosen, pair, trained = streams["chosen"], streams["pair"], streams["weight"] != 0
    there = [_added(((chosen == side) & trained).to(values.dtype), pair) for side in (1, -1)]
    assert bool(((there[0] > 0) & (there[1] > 0) | ~trained).all()), "both answers of a pair are in one micro-batch"
    return _added(values * chosen * trained, pair)


def _added(values: Tensor, index: Tensor) -> Tensor:
    _, at = torch.unique(index, return_inverse=True)
    size = int(at.max()) + 1 if len(at) else 0
    return values.new_zeros(size).index_add(0, at, values)[at]
