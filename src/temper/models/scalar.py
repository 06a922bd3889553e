"""A number for a state: a linear layer from the last hidden state to one value, and answers scored by a stored one.

Value models and reward models are this head over a policy. A reward model is a folder: the adapter (or the weights) as
a trainer saves them, `scalar_head.safetensors`, and `reward_model.json`, which names base model and chat format.
Training it does not live here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from temper.core import registry
from temper.core.errors import CorruptError, MissingError
from temper.core.task import Message
from temper.models import lora
from temper.models.attention import Packed
from temper.models.load import load
from temper.models.policy import Policy

HEAD, MODEL = "scalar_head.safetensors", "reward_model.json"


class ScalarHead:
    """`parameters` by name, weight (1, D) and bias (1,), 0 at first and fp32 at least; (K, D) -> (K,)."""

    def __init__(self, policy: Policy) -> None:
        like = policy.head
        dtype = torch.promote_types(like.dtype, torch.float32)
        shapes = {"scalar_head.weight": (1, like.shape[1]), "scalar_head.bias": (1,)}
        self.parameters = {
            name: nn.Parameter(torch.zeros(shape, dtype=dtype, device=like.device)) for name, shape in shapes.items()
        }

    def __call__(self, hidden: Tensor) -> Tensor:
        weight, bias = self.parameters.values()
        return nn.functional.linear(hidden.to(weight.dtype), weight, bias)[:, 0]

    @torch.no_grad()
    def load(self, folder: str | Path) -> None:
        """Raises MissingError, CorruptError."""
        path = Path(folder) / HEAD
        try:
            stored = load_file(path)
        except FileNotFoundError:
            raise MissingError(f"no scalar head at {path}: expected what a reward or value stage saved") from None
        except SafetensorError as error:
            raise CorruptError(f"{path} does not read: {error}") from None
        for name, parameter in self.parameters.items():
            if name not in stored or stored[name].shape != parameter.shape:
                raise CorruptError(f"{path} is no head of a model of width {parameter.shape[-1]}: {name} does not fit")
            parameter.copy_(stored[name])

    def save(self, folder: Path) -> None:
        save_file({name: p.detach().cpu() for name, p in self.parameters.items()}, folder / HEAD)


class Description(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `reward_model.json` says: which base the weights belong to, and how messages become tokens."""

    base: str
    dtype: str
    chat: dict[str, Any]


class Scorer:
    """A reward model from its folder: a conversation that ends in an answer -> a number. Raises MissingError,
    CorruptError."""

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        try:
            described = msgspec.json.decode((folder / MODEL).read_bytes(), type=Description)
        except FileNotFoundError:
            raise MissingError(f"no reward model at {folder}: it has no {MODEL}") from None
        except msgspec.DecodeError as error:
            raise CorruptError(f"{folder / MODEL} does not read: {error}") from None
        base = load(described.base, described.dtype)
        if (folder / "adapter_config.json").exists():
            adapter, weights = lora.load(folder)
            self._policy = Policy(base, adapter)
        else:
            weights = load_file(folder / "model.safetensors")
            self._policy = Policy(base, full=True)
        self._policy.load_trainable(weights)
        self._head = ScalarHead(self._policy)
        self._head.load(folder)
        module, config = registry.configure("models.chat", described.chat)
        self._chat = module.create(config, base.tokenizer)

    @torch.no_grad()
    def __call__(self, messages: Sequence[Message]) -> float:
        ids = np.concatenate([self._chat.render(messages[:-1]), self._chat.write(messages[-1])])
        tokens = torch.from_numpy(ids.astype(np.int64)).to(self._policy.base.device)
        at = torch.arange(len(ids), device=tokens.device)
        return float(self._head(self._policy.hidden(tokens, at, Packed([len(ids)]))[-1:])[0])
