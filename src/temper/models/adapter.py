"""What a LoRA adapter is; apart from `lora`, which makes one, so that a recipe is checked without torch."""

from __future__ import annotations

from msgspec import Struct

from temper.core.config import Positive, Some


class LoraConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`targets` are names of linear layers in every decoder block; the scale is alpha / rank."""

    rank: Some = 16
    alpha: Positive = 32.0
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
