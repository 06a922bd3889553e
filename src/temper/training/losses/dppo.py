"""DPPO with binary total variation (as in prime-rl): a token whose *probability* moved too far loses its gradient.

-A r keep + pull * (log r)^2, where keep is 0 if A > 0 and p - p_behaviour > high, or A < 0 and p - p_behaviour < -low.
Ratios of rare tokens, which PPO's clip stops first, are left free as long as their probability hardly changes; the
square pulls towards the behaviour policy.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from msgspec import Struct
from torch import Tensor

from temper.training.losses import LARGEST, truncated

streams: frozenset[str] = frozenset({"advantage", "behaviour"})


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`low`, `high`: largest fall and rise of a token's probability. `pull`: coefficient of the squared log-ratio."""

    low: float = 0.2
    high: float = 0.2
    pull: float = 1e-3


def loss(logprobs: Tensor, streams: Mapping[str, Tensor], config: Config) -> tuple[Tensor, dict[str, Tensor]]:
    a, behaviour = streams["advantage"], streams["behaviour"]
    log_ratio = logprobs - behaviour
    moved = logprobs.detach().exp() - behaviour.exp()
    out = torch.where(a > 0, moved > config.high, moved < -config.low)
    value = -a * truncated(log_ratio) * ~out + config.pull * log_ratio.clamp(-LARGEST, LARGEST).square()
    return value, {"masked_fraction": out}
