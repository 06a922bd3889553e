"""GSPO (arXiv 2507.18071): one ratio a sequence, the exponential of its mean log-ratio, clipped as in PPO.

Every token of a sequence gets the sequence's value, so use it with weights that are 1 / (sequences * length). Needs
the stream `sequence`, which the packer writes.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from temper.training.losses import Corrections, importance, truncated
from temper.training.losses.sequences import mean

streams: frozenset[str] = frozenset({"advantage", "behaviour", "sequence"})


class Config(Corrections, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds as the paper's, which are far below PPO's since the ratio is a geometric mean."""

    low: float = 3e-4
    high: float = 4e-4


def loss(logprobs: Tensor, streams: Mapping[str, Tensor], config: Config) -> tuple[Tensor, dict[str, Tensor]]:
    a = streams["advantage"]
    log_ratio, weight = importance(logprobs, streams, config)
    ratio = truncated(mean(log_ratio, streams), config.cap)
    bounded = ratio.clamp(1 - config.low, 1 + config.high)
    clipped = torch.where(a > 0, ratio > 1 + config.high, ratio < 1 - config.low)
    value = -torch.minimum(ratio * a, bounded * a) * weight
    return value, {"clip_fraction": clipped.detach(), "masked_fraction": weight == 0}
