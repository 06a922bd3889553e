"""Root-mean-square normalisation with its own backward: as exact as the model's dtype, in fewer passes than autograd's.

transformers' modules round to fp32 even in an fp64 model. They are replaced where ours computes the same function,
which is tried on the module itself; variants (a weight around zero, a learned offset) stay as they are.
Source of the formula: Zhang and Sennrich, arXiv 1910.07467.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, computed in fp32 at least."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, x: Tensor) -> Tensor:
        return _RmsNorm.apply(x, self.weight, self.eps)


def replace(body: nn.Module) -> None:
    """Put `RmsNorm` in the place of every module of `body` that computes it."""
    for parent in list(body.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm") and _same(child):
                setattr(parent, name, RmsNorm(child.weight, child.variance_epsilon))


@torch.no_grad()
def _same(module: nn.Module) -> bool:
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if weight is None or eps is None or [n for n, _ in module.named_parameters()] != ["weight"]:
        return False
    x = torch.linspace(-1, 2, 2 * len(weight), dtype=weight.dtype, device=weight.device).view(1, 2, -1)
    return torch.allclose(module(x), RmsNorm(weight, eps)(x), rtol=1e-3, atol=1e-5)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        h = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = (torch.linalg.vecdot(h, h) / h.shape[-1]).add_(eps).rsqrt_()[..., None]
        ctx.save_for_backward(x, weight, scale)
        return (h * scale).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        h = x.to(scale.dtype)
        inner = grad.to(scale.dtype) * weight
        along = torch.linalg.vecdot(inner, h)[..., None] * scale.pow(3) / h.shape[-1]
        g_weight = (grad * (h * scale)).flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return inner.mul_(scale).sub_(h * along).to(x.dtype), g_weight, None
