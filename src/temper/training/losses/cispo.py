"""CISPO (arXiv 2506.13585): REINFORCE whose importance ratio is clipped and carries no gradient.

-clip(r, 1 - low, 1 + high) A log p. No token loses its gradient; only its weight is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from temper.training.losses import Corrections, importance, truncated

streams: frozenset[str] = frozenset({"advantage", "behaviour"})


class Config(Corrections, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`low` 1 means no lower bound. `cap` matters only with a proximal policy."""

    low: float = 1.0
    high: float = 0.28


def loss(logprobs: Tensor, streams: Mapping[str, Tensor], config: Config) -> tuple[Tensor, dict[str, Tensor]]:
    log_ratio, weight = importance(logprobs, streams, config)
    ratio = truncated(log_ratio.detach())
    bounded = ratio.clamp(1 - config.low, 1 + config.high)
    value = -bounded * weight * streams["advantage"] * logprobs
    return value, {"clip_fraction": bounded != ratio, "masked_fraction": weight == 0}
