"""Regression of a state's value on its return: half the squared error, clipped around the old value as in PPO.

Streams: `scalar` (the trainer's scalar head, with gradient), `returns`, `old_value`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from msgspec import Struct
from torch import Tensor

streams: frozenset[str] = frozenset({"scalar", "returns", "old_value"})


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`clip`: how far a value may move before the larger of both errors counts; None: no clip."""

    clip: float | None = None


def loss(logprobs: Tensor, streams: Mapping[str, Tensor], config: Config) -> tuple[Tensor, dict[str, Tensor]]:
    value, goal, old = streams["scalar"], streams["returns"], streams["old_value"]
    error = (value - goal).square() / 2
    if config.clip is not None:
        bounded = old + (value - old).clamp(-config.clip, config.clip)
        error = torch.maximum(error, (bounded - goal).square() / 2)
    return error, {"value_error": (value - goal).detach().abs()}
