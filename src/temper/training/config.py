"""Settings of trainer and optimiser; apart from them, so that a recipe is checked without torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from temper.core.config import Amount, Count, Positive

Fraction = Annotated[float, Meta(ge=0, lt=1)]


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`steps` is the length of the linear and cosine schedules; `clip` the largest global gradient norm.

    Weight decay acts on matrices only. `spike`: a gradient norm above so many times the median of the last ones is
    refused; 0 refuses none.

    `micro_tokens`: cap of a micro-batch; a token of a 135 M model in fp32 holds about 1.4 MB until its backward, and
    larger micro-batches are not faster. `temperature`: what was sampled at. `losses` adds to or replaces entries of
    `trainer.LOSSES`, e.g. `losses.pg = {kind = "cispo", high = 0.3}`. `scalar`: train a scalar head beside the policy,
    which losses see as the stream `scalar`.

    `gradient_checkpointing`: of each layer only its input is held for the backward, which computes the layer again: the
    same gradients, bit for bit, for about a third more time.
    """

    lr: Annotated[float, Meta(gt=0, le=1)] = 1e-4
    weight_decay: Amount = 0.0
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    eps: Amount = 1e-8
    clip: Positive = 1.0
    warmup: Count = 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    steps: Count = 0
    spike: Amount = 0.0
    micro_tokens: int = 2048
    gradient_checkpointing: bool = False
    temperature: float = 1.0
    scalar: bool = False
    losses: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.schedule != "constant" and self.steps <= self.warmup:
            raise ValueError(f"schedule {self.schedule!r} needs steps above warmup, got {self.steps}")
