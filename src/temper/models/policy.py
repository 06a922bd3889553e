"""A policy: transformers' decoder over a base's aliased frozen weights, plus what is trained.

Engine and trainer each hold one. Frozen tensors are shared with the `Base` (and so between policies); trainable ones
(the adapter, or every weight in full fine-tuning) are this policy's own copies, moved by `trainable` and
`load_trainable`. Log-probs, losses and sampling are for the callers: here tokens become hidden states, of one policy
or of several in one pass (`Policies`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from temper.core.errors import ConfigError, CorruptError
from temper.models import attention, lora, norm
from temper.models.attention import Layout
from temper.models.load import Base
from temper.models.lora import LoraConfig


class Policy:
    """`Policy(base)` is the frozen base; with `adapter` a LoRA over it; `trainable` without one copies all weights.

    `trainable` says whether gradients are wanted; a policy that only samples leaves it False and is fed by
    `load_trainable`. `full=True` makes such a policy own copies of all weights.
    """

    def __init__(
        self,
        base: Base,
        adapter: LoraConfig | None = None,
        trainable: bool = False,
        *,
        full: bool = False,
        seed: int = 0,
    ) -> None:
        self.base, self.adapter = base, adapter
        owns_all = adapter is None and (trainable or full)
        self.body, self._head = _build(base, copy=owns_all)
        if adapter is not None:
            lora.attach(self.body, adapter, seed)
        for name, parameter in self.body.named_parameters():
            parameter.requires_grad_(trainable and (owns_all or ".lora_" in name))
        if self._head is not None:
            self._head.requires_grad_(trainable and owns_all)
        self._owned = self._find_owned(owns_all)
        self.body.train(trainable)

    @property
    def head(self) -> Tensor:
        """The output projection, (V, D); the embedding itself where they are tied."""
        return self.body.embed_tokens.weight if self._head is None else self._head

    def hidden(self, ids: Tensor, positions: Tensor, layout: Layout, recompute: bool = False) -> Tensor:
        """Final hidden states (T, D) of flattened tokens: ids and positions int64 (T,).

        `recompute`: of each layer only its input is kept for the backward, which computes the rest again.
        """
        return _hidden(self.body, ids, positions, layout, recompute)

    def trainable(self) -> dict[str, nn.Parameter]:
        """What is trained, by the hub's names (and `...lora_A`, `...lora_B`): the live parameters, not copies."""
        return dict(self._owned)

    @torch.no_grad()
    def load_trainable(self, weights: Mapping[str, Tensor]) -> None:
        """Copy into the trainable parameters in place. Names and shapes must be exactly those of `trainable()`."""
        if weights.keys() != self._owned.keys():
            odd = sorted(weights.keys() ^ self._owned.keys())
            raise ConfigError(f"weights do not fit this policy: {len(odd)} names differ, such as {', '.join(odd[:3])}")
        for name, parameter in self._owned.items():
            if weights[name].shape != parameter.shape:
                raise ConfigError(f"{name}: expected {tuple(parameter.shape)}, got {tuple(weights[name].shape)}")
        for name, parameter in self._owned.items():
            parameter.copy_(weights[name])

    def _find_owned(self, all_of_them: bool) -> dict[str, nn.Parameter]:
        found = {f"model.{n}": p for n, p in self.body.named_parameters() if all_of_them or ".lora_" in n}
        if all_of_them and self._head is not None:
            found["lm_head.weight"] = self._head
        return found


class Policies:
    """Policies by name over one base, in one pass; the first is called "". Each is trained, saved and fed as before.

    Tokens of one policy alone are computed by that policy itself, bit for bit.
    """

    def __init__(self, first: Policy) -> None:
        self.by_name = {"": first}
        self._rows: dict[str, Tensor] = {}
        self._body: nn.Module | None = None  # frozen, and shared by all; built when there is a second policy

    def add(self, name: str, policy: Policy) -> None:
        """Raises ConfigError for a name that is taken, another base, and policies with weights of their own."""
        first = self.by_name[""]
        if name in self.by_name:
            raise ConfigError(f"a policy called {name!r} is already there: names must be unique, and not empty")
        if policy.base is not first.base or any(p.adapter is None and p.trainable() for p in (first, policy)):
            raise ConfigError(f"policy {name!r} cannot join: all must be adapters over one `Base` that stays frozen")
        if self._body is None:
            self._body = _build(first.base, copy=False)[0].requires_grad_(False)
            lora.join(self._body, "", first.body, self._rows)
        lora.join(self._body, name, policy.body, self._rows)
        self.by_name[name] = policy

    def remove(self, name: str) -> None:
        assert self._body is not None
        del self.by_name[name]
        lora.part(self._body, name)

    def hidden(self, ids: Tensor, positions: Tensor, layout: Layout, rows: Mapping[str, Tensor]) -> Tensor:
        """As `Policy.hidden`. `rows`: by policy, the indices int64 (n,) of its tokens; each token is somebody's."""
        if len(rows) == 1:
            return self.by_name[next(iter(rows))].hidden(ids, positions, layout)
        assert self._body is not None
        self._rows.clear()
        self._rows.update(rows)
        return _hidden(self._body, ids, positions, layout)


def _hidden(body: Any, ids: Tensor, positions: Tensor, layout: Layout, recompute: bool = False) -> Tensor:
    h = body.embed_tokens(ids[None])  # (1, T, D)
    rotary = body.rotary_emb(h, position_ids=positions[None])
    for layer in body.layers:
        call = partial(layer, position_embeddings=rotary, layout=layout)
        h = checkpoint(call, h, use_reentrant=False, preserve_rng_state=False) if recompute else call(h)
    return body.norm(h)[0]


def _build(base: Base, copy: bool) -> tuple[nn.Module, nn.Parameter | None]:
    """The decoder with its parameters assigned (not copied, unless `copy`), and the head where it is not tied."""
    from transformers import AutoModel

    config = type(base.config)(**base.config.to_dict())
    with torch.device("meta"):
        body = AutoModel.from_config(config, attn_implementation=attention.register())
    body.rotary_emb = type(body.rotary_emb)(config=body.config).to(base.device)  # its buffers are in no checkpoint

    def own(tensor: Tensor) -> Tensor:
        return tensor.clone() if copy else tensor

    state = {name.removeprefix("model."): own(t) for name, t in base.tensors.items() if name.startswith("model.")}
    try:
        body.load_state_dict(state, strict=True, assign=True)
    except RuntimeError as error:
        raise CorruptError(f"the weights of {base.name} do not fit its config: {error}") from error
    norm.replace(body)
    if config.tie_word_embeddings or "lm_head.weight" not in base.tensors:
        return body, None
    return body, nn.Parameter(own(base.tensors["lm_head.weight"]))
