"""Cross-entropy of the given tokens: -log p. Masks and means are in the weights."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

streams: frozenset[str] = frozenset()


def loss(logprobs: Tensor, streams: Mapping[str, Tensor], config: None) -> tuple[Tensor, dict[str, Tensor]]:
    return -logprobs, {}
