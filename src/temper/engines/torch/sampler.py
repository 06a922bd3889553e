"""From logits to tokens, for all rows of a step at once.

A token depends on its own row, its request's seed and its number in the output alone, never on the batch: one
counter-based uniform each, and the inverse of the distribution function. Log-probs are the full distribution's at the
request's temperature, before top-k and top-p (at temperature 0: at 1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from temper.core.protocols import SamplingParams

_BLOCK = 256  # vocabulary entries summed together; the search is over blocks, then inside one


def sample(logits: Tensor, params: Sequence[SamplingParams], index: Sequence[int]) -> tuple[Tensor, Tensor]:
    """logits float (N, V), overwritten; index: which token of its output each row samples -> ids, log-probs (N,).

    A log-prob is NaN where logits are no finite numbers.
    """
    logits = logits.float()
    if any(p.temperature not in (0.0, 1.0) for p in params):
        heat = torch.tensor([1 / (p.temperature or 1.0) for p in params], device=logits.device)
        logits.mul_(heat[:, None])
    mass = logits.softmax(-1)  # (N, V)
    u = torch.from_numpy(uniform([p.seed for p in params], index)).to(logits.device)
    ids = _inverse(mass, u)
    for row, p in enumerate(params):
        if p.temperature == 0:
            ids[row] = logits[row].argmax()
        elif p.top_k > 0 or p.top_p < 1:
            ids[row] = _truncated(mass[row], p, float(u[row]))
    return ids, mass.gather(1, ids[:, None])[:, 0].log()


def uniform(seeds: Sequence[int], index: Sequence[int]) -> np.ndarray:
    """float64 (N,) in [0, 1) from (seed, number of the token). SplitMix64 twice (Steele et al., OOPSLA 2014)."""
    seed = np.array([s & 0xFFFFFFFFFFFFFFFF for s in seeds], np.uint64)
    with np.errstate(over="ignore"):
        bits = _mix(_mix(seed) + np.asarray(index, np.uint64))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: np.ndarray) -> np.ndarray:
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _inverse(mass: Tensor, u: Tensor) -> Tensor:
    """The entry (N,) at which the running sum of mass (N, V) first passes u (N,) of the total."""
    short = -mass.shape[1] % _BLOCK
    blocks = (pad(mass, (0, short)) if short else mass).view(len(u), -1, _BLOCK)
    sums = blocks.sum(-1).double().cumsum(-1)  # (N, blocks)
    target = (u * sums[:, -1])[:, None]
    block = torch.searchsorted(sums, target, right=True).clamp_(max=sums.shape[1] - 1)  # (N, 1)
    rows = torch.arange(len(u), device=u.device)
    inside = blocks[rows, block[:, 0]].double().cumsum(-1)  # (N, block)
    before = torch.where(block > 0, sums.gather(1, (block - 1).clamp(min=0)), 0.0)
    rest = torch.minimum(target - before, inside[:, -1:] * (1 - 1e-12))  # sums round: stay on an entry that has mass
    found = (block * blocks.shape[2] + torch.searchsorted(inside, rest, right=True))[:, 0]
    return found.clamp_(max=mass.shape[1] - 1)  # of masses that are no numbers; the log-prob tells


def _truncated(mass: Tensor, params: SamplingParams, u: float) -> Tensor:
    """One row under top-k, then top-p: the smallest set of the likeliest tokens whose share reaches top_p."""
    k = params.top_k if 0 < params.top_k < len(mass) else len(mass)
    values, order = mass.topk(k)  # descending
    running = values.double().cumsum(0)
    if params.top_p < 1:
        running = running[: int(torch.searchsorted(running, params.top_p * running[-1])) + 1]
    target = min(u, 1 - 1e-12) * running[-1]
    return order[torch.searchsorted(running, target, right=True).clamp_(max=len(running) - 1)]
