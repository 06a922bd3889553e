"""Losses by token: one short module each (`core.protocols.Loss`), found by its name.

`loss(logprobs, streams, config)` gets the K trained positions only: log-probs (K,) with gradient, streams (K,) each,
among them `weight`, the component's own (already divided by its global count, 0 where it does not train). It gives
loss values (K,), which the trainer multiplies by `weight` and sums, and diagnostics (K,), which it averages.

Policy gradients share what follows. Names of the policies: the one that *sampled* (stream `behaviour`, stored at
sampling, possibly several versions old), the *current* one, and, only where a stage gives it, the `proximal` one.

- Without `proximal` the ratio's denominator is the behaviour policy itself: one number corrects staleness and the
  engine's numerics, and the clip bounds the distance from what sampled (the setting of one gradient a batch).
- With `proximal` (decoupled PPO, arXiv 2505.24298) the clip is around the proximal policy, and the rest of the way
  to the behaviour policy is a weight without gradient.
- With `nearness` in [0, 1] the proximal policy is not measured but lies that far on the way, in log-probs, from the
  behaviour policy to the current one (AReaL's approximation); 1 is the current policy itself.

`Corrections` are what all of them take. Masked tokens stay in the normaliser.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from torch import Tensor, ones_like

from temper.training.losses.sequences import mean

LARGEST = 20.0  # log-ratios are cut here, as in verl: exp stays finite and 0 * inf cannot arise


class Corrections(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cap` truncates importance weights (TIS). `keep` = (low, high) masks tokens whose weight lies outside (IcePop),
    `reject` whole sequences whose geometric mean of weights does (verl's "geometric" rejection); None: off."""

    cap: float = 2.0
    keep: tuple[float, float] | None = None
    reject: tuple[float, float] | None = None


def importance(logprobs: Tensor, streams: Mapping[str, Tensor], config: Corrections) -> tuple[Tensor, Tensor]:
    """Log-ratio of the current policy to the clip's anchor (with gradient), and the weight that multiplies it (K,)."""
    behaviour = streams["behaviour"]
    anchor = streams.get("proximal", behaviour)
    if "nearness" in streams:
        anchor = behaviour + streams["nearness"] * (logprobs.detach() - behaviour)
    current = logprobs.detach() if anchor is behaviour else anchor
    from_behaviour = (current - behaviour).clamp(-LARGEST, LARGEST).exp()
    weight = ones_like(behaviour) if anchor is behaviour else from_behaviour.clamp(max=config.cap)
    if config.keep is not None:
        weight = weight * _inside(from_behaviour, config.keep)
    if config.reject is not None:
        weight = weight * _inside(mean(from_behaviour.log(), streams).exp(), config.reject)
    return logprobs - anchor, weight


def truncated(log_ratio: Tensor, cap: float = math.inf) -> Tensor:
    """exp(log_ratio), cut at `cap`: its value is min(r, cap), its gradient min(r, cap) times that of log_ratio."""
    held = log_ratio.detach()
    return held.clamp(-LARGEST, min(math.log(cap), LARGEST)).exp() * (1 + (log_ratio - held))


def whole(module: Any, config: Any) -> bool:
    """Whether this loss, so configured, needs all tokens of a sequence (or a pair) in one micro-batch."""
    return bool({"sequence", "pair"} & module.streams) or getattr(config, "reject", None) is not None


def _inside(values: Tensor, bounds: tuple[float, float]) -> Tensor:
    return (values >= bounds[0]) & (values <= bounds[1])
