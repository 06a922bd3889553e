"""DPO (arXiv 2305.18290): -log sigmoid(beta * margin), with log-ratios to the reference summed over each answer."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from torch import Tensor
from torch.nn.functional import logsigmoid

from temper.training.losses.sequences import margin

streams: frozenset[str] = frozenset({"reference", "pair", "chosen"})


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`smoothing`: chance that a label is wrong (conservative DPO)."""

    beta: float = 0.1
    smoothing: float = 0.0


def loss(logprobs: Tensor, streams: Mapping[str, Tensor], config: Config) -> tuple[Tensor, dict[str, Tensor]]:
    gap = config.beta * margin(logprobs - streams["reference"], streams)
    value = -(1 - config.smoothing) * logsigmoid(gap) - config.smoothing * logsigmoid(-gap)
    return value, {"pair_accuracy": gap.detach() > 0, "reward_margin": gap.detach()}
