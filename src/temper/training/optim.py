"""The optimiser: AdamW, clipping by global norm, warm-up and schedule. What is not finite, or a spike, is skipped.

Moments are plain tensors by parameter name, so that a checkpoint holds no pickle. A parameter in half precision is the
rounding of an fp32 one that is kept here, since most updates are smaller than what it can show. Where parameters are
spread over ranks all of these are a rank's rows, and `norm` is over all of them; sharding does not live here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

from temper.core.errors import CorruptError
from temper.training.config import Config

RECENT = 16  # norms that a spike is measured by, from half as many on


def learning_rate(config: Config, step: int) -> float:
    """Rate of step `step` (from 0): linear warm-up over `warmup` steps, then the schedule down to 0 after `steps`."""
    if step < config.warmup:
        return config.lr * (step + 1) / (config.warmup + 1)
    done = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
    match config.schedule:
        case "constant":
            return config.lr
        case "linear":
            return config.lr * (1 - done)
        case "cosine":
            return config.lr * (1 + math.cos(math.pi * done)) / 2


def total_norm(gradients: Mapping[str, Tensor]) -> float:
    return float(torch.nn.utils.get_total_norm(gradients.values()))


class Optimizer:
    """AdamW (arXiv 1711.05101) over named parameters; reads `.grad` and clears it."""

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        config: Config,
        norm: Callable[[Mapping[str, Tensor]], float] = total_norm,
    ) -> None:
        self.parameters = dict(parameters)
        self.config = config
        self._norm = norm
        self.steps = 0  # calls, for the schedule
        self.updates = 0  # applied ones, for the bias correction
        self.norms: list[float] = []  # of the last applied ones, for spikes
        # moments are fp32 at least, whatever the weights are
        wide = {k: torch.promote_types(p.dtype, torch.float32) for k, p in self.parameters.items()}
        self.first = {k: torch.zeros_like(p, dtype=wide[k]) for k, p in self.parameters.items()}
        self.second = {k: torch.zeros_like(p, dtype=wide[k]) for k, p in self.parameters.items()}
        self.master = {k: p.detach().to(wide[k]) for k, p in self.parameters.items() if p.dtype != wide[k]}

    @torch.no_grad()
    def step(self) -> dict[str, float]:
        """Update from the gradients. Gives `grad_norm` (before clipping), `lr`, `skipped` (1: refused)."""
        grads = {k: p.grad for k, p in self.parameters.items() if p.grad is not None}
        norm = self._norm(grads) if grads else 0.0
        lr = learning_rate(self.config, self.steps)
        self.steps += 1
        refused = not math.isfinite(norm) or self._spikes(norm)
        if grads and not refused:
            self.norms = [*self.norms, norm][-RECENT:]
            self._update(grads, lr, min(1.0, self.config.clip / (norm + 1e-12)))
        for p in self.parameters.values():
            p.grad = None
        return {"grad_norm": norm, "lr": lr, "skipped": float(refused)}

    def _spikes(self, norm: float) -> bool:
        known = len(self.norms) >= RECENT // 2
        return bool(self.config.spike) and known and norm > self.config.spike * statistics.median(self.norms)

    def state(self) -> dict[str, Tensor]:
        moments = (("first", self.first), ("second", self.second), ("master", self.master))
        return {f"{moment}.{k}": t for moment, tensors in moments for k, t in tensors.items()}

    def load_state(self, state: Mapping[str, Tensor], steps: int, updates: int) -> None:
        """Copy in what `state` gave. Raises CorruptError when the names or shapes are not those of the parameters."""
        mine = self.state()
        wrong = sorted(set(mine) ^ set(state)) or [k for k in mine if mine[k].shape != state[k].shape]
        if wrong:
            raise CorruptError(f"optimiser state does not fit the policy at {wrong[0]} ({len(wrong)} in all)")
        for k, tensor in mine.items():
            tensor.copy_(state[k])
        self.steps, self.updates = steps, updates

    def _update(self, grads: Mapping[str, Tensor], lr: float, scale: float) -> None:
        self.updates += 1
        b1, b2 = self.config.betas
        c1, c2 = 1 - b1**self.updates, math.sqrt(1 - b2**self.updates)
        for k, grad in grads.items():
            p, m, v = self._master(k), self.first[k], self.second[k]
            g = grad.to(m.dtype) * scale
            m.lerp_(g, 1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            if self.config.weight_decay and p.ndim > 1:
                p.mul_(1 - lr * self.config.weight_decay)
            p.sub_(lr / c1 * m / (v.sqrt() / c2 + self.config.eps))
            if k in self.master:
                self.parameters[k].copy_(p)

    def _master(self, name: str) -> Tensor:
        """What is updated: the parameter, or its fp32 copy, made anew where somebody else wrote the parameter."""
        p, master = self.parameters[name], self.master.get(name)
        if master is None:
            return p
        return master if torch.equal(master.to(p.dtype), p) else master.copy_(p)
