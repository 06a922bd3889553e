"""KTO (arXiv 2402.01306): answers that are good or bad by themselves, weighed against a common point.

With r the log-ratio to the reference summed over an answer and z the KL between both policies (stream `anchor`,
estimated by the stage from mismatched answers, without gradient): 1 - sigmoid(beta (r - z)) for a good one,
1 - sigmoid(beta (z - r)) for a bad one. `chosen` is +1 or -1 as with pairs.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from msgspec import Struct
from torch import Tensor

from temper.training.losses.sequences import total

streams: frozenset[str] = frozenset({"reference", "chosen", "sequence", "anchor"})


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`good`, `bad`: weights of the two kinds, to balance unequal numbers of them."""

    beta: float = 0.1
    good: float = 1.0
    bad: float = 1.0


def loss(logprobs: Tensor, streams: Mapping[str, Tensor], config: Config) -> tuple[Tensor, dict[str, Tensor]]:
    reward = total(logprobs - streams["reference"], streams) - streams["anchor"]
    chosen = streams["chosen"]
    value = 1 - torch.sigmoid(config.beta * chosen * reward)
    return torch.where(chosen > 0, config.good, config.bad) * value, {"reward_margin": (chosen * reward).detach()}
