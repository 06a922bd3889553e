"""PPO's clipped objective with separate bounds (DAPO, arXiv 2503.14476), truncated importance weights, dual clip.

-min(r A, clip(r, 1 - low, 1 + high) A). The clip leaves one case open: A < 0 and a large r, whose weight is cut at
`cap` (gradient kept), or bounded by `dual` (gradient lost; arXiv 1912.09729).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from temper.training.losses import Corrections, importance, truncated

streams: frozenset[str] = frozenset({"advantage", "behaviour"})


class Config(Corrections, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`low`, `high`: clip bounds. `dual`: off when None."""

    low: float = 0.2
    high: float = 0.28
    dual: float | None = None


def loss(logprobs: Tensor, streams: Mapping[str, Tensor], config: Config) -> tuple[Tensor, dict[str, Tensor]]:
    a = streams["advantage"]
    log_ratio, weight = importance(logprobs, streams, config)
    ratio = truncated(log_ratio, config.cap)
    bounded = ratio.clamp(1 - config.low, 1 + config.high)
    value = -torch.minimum(ratio * a, bounded * a)
    if config.dual is not None:
        value = torch.where(a < 0, torch.minimum(value, -config.dual * a), value)
    clipped = torch.where(a > 0, ratio > 1 + config.high, ratio < 1 - config.low)
    return value * weight, {"clip_fraction": clipped.detach(), "masked_fraction": weight == 0}
