"""KL to a reference policy from one sample a token (Schulman 2020, "Approximating KL divergence").

With d = log p - log p_ref: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. As a loss, k2 has the right gradient on policy;
k1 has none in expectation and is for reporting. Importance weights for stale tokens are not applied here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from torch import Tensor

from temper.training.losses import LARGEST

streams: frozenset[str] = frozenset({"reference"})


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    estimator: Literal["k1", "k2", "k3"] = "k2"


def loss(logprobs: Tensor, streams: Mapping[str, Tensor], config: Config) -> tuple[Tensor, dict[str, Tensor]]:
    d = logprobs - streams["reference"]
    match config.estimator:
        case "k1":
            value = d
        case "k2":
            value = d.square() / 2
        case "k3":
            value = (-d).clamp(max=LARGEST).exp() - 1 + d
    return value, {}
