"""LoRA: y = x W' + (alpha / rank) x A' B', with W frozen and aliased; adapters in PEFT's file format.

Own layer instead of peft's wrappers, which cost 23-43 % of a decode step here. One adapter a policy; in a pass of
several policies each acts on its own rows (`join`). Dropout, rank patterns and other variants are refused on load.
Source of the formula: Hu et al., arXiv 2106.09685.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from temper.core.errors import ConfigError, CorruptError, MissingError, RefusedError
from temper.models.adapter import LoraConfig

_PREFIX, _SUFFIX = "base_model.model.", ".weight"  # what PEFT's files put around our names


class LoraLinear(nn.Module):
    """A linear layer with its low-rank addition. A: (rank, in), B: (out, rank), zero at first."""

    def __init__(self, linear: nn.Linear, config: LoraConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.scale = config.alpha / config.rank
        out, into = linear.weight.shape
        bound = 1 / math.sqrt(into)  # PEFT's: kaiming_uniform with a = sqrt(5)
        a = torch.empty(config.rank, into).uniform_(-bound, bound, generator=generator)
        self.lora_A = nn.Parameter(a.to(linear.weight))
        self.lora_B = nn.Parameter(linear.weight.new_zeros(out, config.rank))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)  # (T, in)
        y = nn.functional.linear(flat, self.weight, self.bias)
        return y.addmm(nn.functional.linear(flat, self.lora_A), self.lora_B.T, alpha=self.scale).view(*x.shape[:-1], -1)


class MixedLinear(nn.Module):
    """The linear layer of a pass of several policies. `rows`, set by the caller before a pass: which are whose.

    Rows are grouped by adapter, not padded, and never multiplied by another's: a broken adapter breaks its own alone.
    """

    def __init__(self, linear: nn.Linear, rows: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.rows = rows
        self.adapters: dict[str, LoraLinear] = {}  # by policy; a plain dict, since they belong to their policies

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)  # (T, in)
        y = nn.functional.linear(flat, self.weight, self.bias)
        for name, rows in self.rows.items():
            if (adapter := self.adapters.get(name)) is not None:
                low = nn.functional.linear(flat.index_select(0, rows), adapter.lora_A)
                y.index_add_(0, rows, low @ adapter.lora_B.T, alpha=adapter.scale)
        return y.view(*x.shape[:-1], -1)


def attach(body: nn.Module, config: LoraConfig, seed: int = 0) -> None:
    """Replace the target layers of a decoder in place; `seed` draws A. Raises ConfigError for an unmatched target."""
    generator = torch.Generator().manual_seed(seed)
    found = [
        (parent, child, linear)
        for parent in body.modules()
        for child, linear in parent.named_children()
        if child in config.targets and isinstance(linear, nn.Linear)
    ]
    missing = set(config.targets) - {child for _, child, _ in found}
    if missing or config.rank < 1:
        raise ConfigError(
            f"LoRA of rank {config.rank}: no linear layer is called {', '.join(sorted(missing)) or '...'}"
        )
    for parent, child, linear in found:
        setattr(parent, child, LoraLinear(linear, config, generator))


def join(body: nn.Module, name: str, other: nn.Module, rows: Mapping[str, Tensor]) -> None:
    """Let the adapter in `other`, a decoder over the same base, act in `body` on the rows called `name`."""
    for path, adapter in other.named_modules():
        if not isinstance(adapter, LoraLinear):
            continue
        parent, child = body.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
        layer = getattr(parent, child)
        if not isinstance(layer, MixedLinear):
            layer = MixedLinear(layer, rows)
            setattr(parent, child, layer)
        layer.adapters[name] = adapter


def part(body: nn.Module, name: str) -> None:
    """Undo `join`."""
    for layer in body.modules():
        if isinstance(layer, MixedLinear):
            layer.adapters.pop(name, None)


def save(weights: Mapping[str, Tensor], config: LoraConfig, folder: str | Path, base: str) -> None:
    """Write adapter_config.json and adapter_model.safetensors, as PEFT reads them. `base` is the base model's name."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "target_modules": sorted(config.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(described, indent=2) + "\n", "utf-8")
    named = {f"{_PREFIX}{name}{_SUFFIX}": t.detach().contiguous().cpu() for name, t in weights.items()}
    save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})


def load(folder: str | Path) -> tuple[LoraConfig, dict[str, Tensor]]:
    """Read a PEFT adapter: its shape, and its weights under our names.

    Raises MissingError, CorruptError, RefusedError (variants other than plain LoRA).
    """
    folder = Path(folder)
    try:
        described = json.loads((folder / "adapter_config.json").read_text("utf-8"))
        stored = load_file(folder / "adapter_model.safetensors")
    except FileNotFoundError as error:
        raise MissingError(
            f"no adapter at {folder}: {error}; expected PEFT's adapter_config.json and safetensors"
        ) from None
    except (ValueError, SafetensorError) as error:
        raise CorruptError(f"the adapter at {folder} does not read: {error}") from error
    variants = list(_variants(described))
    if variants:
        raise RefusedError(f"the adapter at {folder} uses {', '.join(variants)}: only plain LoRA is supported")
    config = LoraConfig(
        rank=described["r"], alpha=described["lora_alpha"], targets=tuple(sorted(described["target_modules"]))
    )
    return config, {name.removeprefix(_PREFIX).removesuffix(_SUFFIX): t for name, t in stored.items()}


def _variants(described: Mapping[str, Any]) -> Iterator[str]:
    """Settings of an adapter_config.json that change the formula."""
    if described.get("peft_type") != "LORA":
        yield f"peft_type={described.get('peft_type')}"
    if described.get("bias", "none") != "none":
        yield f"bias={described['bias']}"
    if not isinstance(described.get("target_modules"), list):
        yield f"target_modules={described.get('target_modules')}"
    for key in ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out"):
        if described.get(key):
            yield key
