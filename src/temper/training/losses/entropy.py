"""Entropy bonus: minus the entropy of the distribution at each token, so that a weight keeps a policy exploring."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

streams: frozenset[str] = frozenset({"entropy"})


def loss(logprobs: Tensor, streams: Mapping[str, Tensor], config: None) -> tuple[Tensor, dict[str, Tensor]]:
    return -streams["entropy"], {}
