"""IPO (arXiv 2310.12036, equation 17): (margin - 1 / (2 beta))^2, with log-ratios averaged over each answer.

The average instead of the paper's sum is their later advice, and what TRL does: otherwise long answers overshoot.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from msgspec import Struct
from torch import Tensor

from temper.training.losses.sequences import margin, total

streams: frozenset[str] = frozenset({"reference", "pair", "chosen", "sequence"})


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    beta: float = 0.1


def loss(logprobs: Tensor, streams: Mapping[str, Tensor], config: Config) -> tuple[Tensor, dict[str, Tensor]]:
    lengths = total(torch.ones_like(logprobs), streams).clamp(min=1)
    gap = margin((logprobs - streams["reference"]) / lengths, streams)
    return (gap - 1 / (2 * config.beta)).square(), {"pair_accuracy": gap.detach() > 0, "reward_margin": gap.detach()}
