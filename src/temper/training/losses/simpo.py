"""SimPO (arXiv 2405.14734): -log sigmoid(beta * (mean log p of chosen - mean log p of rejected) - gamma).

It needs no reference policy.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from msgspec import Struct
from torch import Tensor
from torch.nn.functional import logsigmoid

from temper.training.losses.sequences import margin, total

streams: frozenset[str] = frozenset({"pair", "chosen", "sequence"})


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`gamma`: the margin that is wanted."""

    beta: float = 2.0
    gamma: float = 1.0


def loss(logprobs: Tensor, streams: Mapping[str, Tensor], config: Config) -> tuple[Tensor, dict[str, Tensor]]:
    lengths = total(torch.ones_like(logprobs), streams).clamp(min=1)
    gap = config.beta * margin(logprobs / lengths, streams)
    return -logsigmoid(gap - config.gamma), {"pair_accuracy": gap.detach() > 0, "reward_margin": gap.detach()}
