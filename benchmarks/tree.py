"""`temper bench tree`: a group trained as a token tree against the same group packed sample by sample, in turns.

Both are one trainer step (forward, backward, update) on the same rows, weights and threads, with the same
micro-batch cap; only `share` differs. rho_F is the ratio of their floating-point operations, counted over linear
layers, adapters, attention pairs and head, forward and backward. Groups of 8 and 16, prompts of 512 to 4,096 tokens,
answers of P/16 ("short") and P/4 ("other") tokens. The first `layers` layers of the default model, since the ratio
does not depend on their number and the largest case takes minutes otherwise.

The gradient's error is the largest difference, in fp64, over a group whose tree is split over micro-batches and a
conversation forked at four depths, relative to nothing: absolute. Peak: resident bytes that a step adds in a fresh
process with weights and optimiser state made, for groups of 4 and of 16 under one cap.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from temper.core.trace import MicroBatch
from temper.models.load import DEFAULT, Base, load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy
from temper.training.packing import Row, pack
from temper.training.trainer import Config, Trainer

SETTINGS = {
    "model": DEFAULT, "layers": 6, "prompts": [512, 1024, 2048, 4096], "groups": [8, 16], "rank": 16, "pairs": 5,
    "seed": 0,
}  # fmt: skip
SHARES = {"short_answers": 16, "other": 4}  # a prompt's length over its answers'
PEAK = {"prompt": 1024, "answer": 64}


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure; gives metrics, their spread, the number of pairs and the settings used."""
    used = SETTINGS | settings
    base = slice_of(load(used["model"]), used["layers"])
    trainer = learner(base, used["rank"])
    series: dict[str, list[float]] = {}
    for _ in range(used["pairs"]):
        for prompt in used["prompts"]:
            for group in used["groups"]:
                for kind, share in SHARES.items():
                    shape = f"{kind}/p{prompt}_g{group}"
                    found = pair(trainer, prompt, prompt // share, group, used["seed"])
                    for name, value in zip(("speedup", "rho_f", "share"), found, strict=True):
                        series.setdefault(f"{name}/{shape}", []).append(value)
    metrics = {name: statistics.median(values) for name, values in series.items()}
    spread = {name: [min(values), metrics[name], max(values)] for name, values in series.items()}
    for kind in SHARES:
        shares = [v for name, v in metrics.items() if name.startswith(f"share/{kind}/")]
        metrics[f"speedup_over_rho_f_{kind}_min"] = min(shares)
    metrics["grad_error_fp64_max"] = gradient_error(used)
    peaks = {group: peak(used, group) for group in (4, 16)}
    metrics["peak_growth_g4_to_g16"] = peaks[16] / peaks[4]
    return {"metrics": metrics, "spread": spread, "pairs": used["pairs"], "settings": used | {"peak_bytes": peaks}}


def pair(trainer: Trainer, prompt: int, answer: int, group: int, seed: int) -> tuple[float, float, float]:
    """(speed-up, rho_F, their quotient) of one step each."""
    rows = draw(trainer.policy.base, prompt, answer, group, seed)
    cap = max(2048, 2 * prompt)
    tree, alone = (pack(rows, cap, share=share) for share in (True, False))
    seconds = [clock(trainer, batches) for batches in (tree, alone)]
    operations = [flops(trainer.policy, batches) for batches in (tree, alone)]
    speedup, rho = seconds[1] / seconds[0], operations[1] / operations[0]
    return speedup, rho, speedup / rho


def draw(base: Base, prompt: int, answer: int, group: int, seed: int) -> list[Row]:
    rng = np.random.default_rng(seed)
    shared = rng.integers(3, base.config.vocab_size, prompt)
    weight = np.append(np.zeros(prompt), np.full(answer, 1 / (answer * group)))
    return [
        Row(
            name=str(i),
            ids=np.append(shared, rng.integers(3, base.config.vocab_size, answer)),
            streams={"w_ce": weight},
            family="group",
        )
        for i in range(group)
    ]


def learner(base: Base, rank: int) -> Trainer:
    policy = Policy(base, LoraConfig(rank=rank), trainable=True)
    return Trainer(policy, Config(lr=1e-6, losses={"ce": {"kind": "cross_entropy"}}))


def slice_of(base: Base, layers: int) -> Base:
    """The model's first layers, as a model."""
    config = type(base.config)(**base.config.to_dict() | {"num_hidden_layers": layers})
    kept = {
        name: tensor
        for name, tensor in base.tensors.items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers
    }
    return replace(base, config=config, tensors=kept)


def clock(trainer: Trainer, batches: list[MicroBatch]) -> float:
    began = time.perf_counter()
    trainer.step(batches)
    return time.perf_counter() - began


def flops(policy: Policy, batches: tuple[MicroBatch, ...] | list[MicroBatch], above: int = 0) -> float:
    """Operations of forward and backward: a frozen matrix has two products, an adapter's three, attention seven."""
    config, total = policy.base.config, 0.0
    frozen = sum(
        p.numel() for n, p in policy.body.named_parameters() if p.ndim == 2 and "layers" in n and ".lora_" not in n
    )
    adapters = sum(p.numel() for p in policy.trainable().values())
    width = config.num_attention_heads * getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    for batch in batches:
        tokens = len(batch.ids)
        pairs = float((batch.positions + 1).sum())  # what each token sees
        total += 2 * tokens * (2 * frozen + 3 * adapters) + 2 * 7 * width * config.num_hidden_layers * pairs
        total += 2 * 2 * len(batch.at) * policy.head.numel()
        total += flops(policy, batch.below)
    return total


def gradient_error(used: dict[str, Any]) -> float:
    base = slice_of(load(used["model"], "float64"), 2)
    trainer = learner(base, used["rank"])
    with torch.no_grad():
        for name, p in trainer.policy.trainable().items():
            if name.endswith("lora_B"):
                p.add_(0.02 * torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(len(name))))
    worst = 0.0
    for rows, cap in ((draw(base, 256, 16, 8, used["seed"]), 320), (forked(base, used["seed"]), 128)):
        expected = gradients(trainer, pack(rows, 1 << 20, share=False))
        for batches in (pack(rows, cap), pack(rows, 1 << 20)):
            found = gradients(trainer, batches)
            worst = max(worst, *(float((found[k] - expected[k]).abs().max()) for k in expected))
    return worst


def forked(base: Base, seed: int) -> list[Row]:
    """A conversation that forks in two at each of four depths; every turn ends in trained tokens."""
    rng = np.random.default_rng(seed)

    def turns(depth: int) -> list[tuple[np.ndarray, np.ndarray]]:
        ids, trained = rng.integers(3, base.config.vocab_size, 24), np.arange(24) >= 16
        below = [path for _ in range(2) for path in turns(depth - 1)] if depth else [(ids[:0], trained[:0])]
        return [(np.append(ids, more), np.append(trained, flags)) for more, flags in below]

    return [
        Row(name=str(i), ids=ids, streams={"w_ce": trained / 500}, family="forked")
        for i, (ids, trained) in enumerate(turns(4))
    ]


def gradients(trainer: Trainer, batches: list[MicroBatch]) -> dict[str, torch.Tensor]:
    trainer.accumulate(batches)
    return {name: p.grad.clone() for name, p in trainer.policy.trainable().items() if p.grad is not None}


def peak(used: dict[str, Any], group: int) -> float:
    """Bytes that the second step of a fresh process adds to what it holds before the first."""
    spec = json.dumps(used | PEAK | {"group": group})
    done = subprocess.run([sys.executable, __file__, spec], capture_output=True, text=True, check=True)
    return float(done.stdout)


def _peak(spec: dict[str, Any]) -> int:
    base = slice_of(load(spec["model"]), spec["layers"])
    trainer = learner(base, spec["rank"])
    small = pack(draw(base, 16, 4, 2, 0), 64)
    trainer.step(small)  # optimiser state, and whatever a first step sets up
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    trainer.step(
        pack(draw(base, spec["prompt"], spec["answer"], spec["group"], 0), spec["prompt"] + 4 * spec["answer"])
    )
    return _memory("VmHWM") - before


def _memory(name: str) -> int:
    """Bytes by a line of /proc/self/status."""
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith(name))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    print(_peak(json.loads(sys.argv[1])))
