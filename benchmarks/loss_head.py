"""`temper bench loss-head`: log-probs and their gradients by our chunked head against the dense one, in turns.

Dense is what a trainer without this head does: logits in one piece, log-softmax, gather, autograd. "fused": a loss
local to tokens, whose weights are known beforehand. "recompute": a loss over whole sequences (GSPO), for which a fused
kernel would have to recompute; ours does not. The head is frozen, as under LoRA. Dense runs at a length whose logits
fit memory, ours is timed at the same length.

Peak: resident bytes that a fresh process adds for forward and backward with entropy, beyond hidden states, head and
gradients (once the size of the hidden states), at the longest of `lengths`; growth over lengths is in the settings.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from temper.training.logprobs import logprobs
from temper.training.losses import gspo

SETTINGS = {
    "vocabulary": 151936, "width": 896, "dtype": "float32", "tokens": 1024, "lengths": [2048, 8192, 32768], "pairs": 5,
    "seed": 0,
}  # fmt: skip
Head = Callable[[Tensor, Tensor, Tensor], Tensor]


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure; gives metrics, their spread, the number of pairs and the settings used."""
    used = SETTINGS | settings
    hidden, head, targets = draw(used, used["tokens"])
    series: dict[str, list[float]] = {}
    for pair in range(used["pairs"] + 1):
        for name, loss in {"fused": local, "recompute": by_sequence}.items():
            seconds = [clock(h, loss, hidden, head, targets) for h in (ours, dense)]
            if pair:  # the first warms up
                series.setdefault(f"vs_dense_{name}", []).append(seconds[1] / seconds[0])
    metrics = {name: statistics.median(values) for name, values in series.items()}
    spread = {name: [min(values), metrics[name], max(values)] for name, values in series.items()}
    peaks = {n: peak(used, n) / 2**30 for n in used["lengths"]}
    metrics["peak_gib"] = max(peaks.values())
    return {"metrics": metrics, "spread": spread, "pairs": used["pairs"], "settings": used | {"peaks_gib": peaks}}


def ours(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    return logprobs(hidden, head, targets)[0]


def dense(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    return torch.log_softmax(hidden @ head.T, -1).gather(1, targets[:, None])[:, 0]


def local(found: Tensor) -> Tensor:
    return -found.mean()


def by_sequence(found: Tensor) -> Tensor:
    """GSPO over sequences of 64 tokens, all on policy."""
    streams = {
        "behaviour": found.detach(),
        "advantage": torch.linspace(-1, 1, len(found)),
        "sequence": torch.arange(len(found)) // 64,
        "weight": torch.full_like(found, 1 / len(found)),
    }
    return (gspo.loss(found, streams, gspo.Config())[0] * streams["weight"]).sum()


def clock(head_of: Head, loss: Callable[[Tensor], Tensor], hidden: Tensor, head: Tensor, targets: Tensor) -> float:
    hidden = hidden.detach().requires_grad_()
    began = time.perf_counter()
    loss(head_of(hidden, head, targets)).backward()
    return time.perf_counter() - began


def draw(used: dict[str, Any], tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(used["seed"])
    dtype = getattr(torch, used["dtype"])
    head = torch.randn(used["vocabulary"], used["width"], dtype=dtype) * 0.02
    return torch.randn(tokens, used["width"], dtype=dtype), head, torch.randint(0, used["vocabulary"], (tokens,))


def peak(used: dict[str, Any], tokens: int) -> float:
    spec = json.dumps(used | {"tokens": tokens})
    done = subprocess.run([sys.executable, __file__, spec], capture_output=True, text=True, check=True)
    return float(done.stdout)


def _peak(used: dict[str, Any]) -> int:
    hidden, head, targets = draw(used, used["tokens"])
    small = hidden[:2].clone().requires_grad_()
    logprobs(small, head, targets[:2], entropy=True)[0].sum().backward()  # threads and libraries
    hidden.requires_grad_()
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    logprobs(hidden, head, targets, entropy=True)[0].sum().backward()
    assert hidden.grad is not None
    return _memory("VmHWM") - before - hidden.grad.nbytes


def _memory(name: str) -> int:
    """Bytes by a line of /proc/self/status."""
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith(name))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    print(_peak(json.loads(sys.argv[1])))
