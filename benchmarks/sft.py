"""`temper bench sft`: a step of supervised fine-tuning, ours against TRL's SFTTrainer without padding, in turns.

Same model, LoRA shape, optimiser, threads and batches of `batch` sequences in the same order, all tokens trained;
lengths log-normal (`median`, `sigma`). fp32, no gradient checkpointing. `loss_gap`: relative difference of both sums
of losses.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from temper.core.trace import Segment, Trace
from temper.models.load import DEFAULT, load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy
from temper.training.stages import sft
from temper.training.trainer import Config, Trainer

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from turns import compare, lengths, words

SETTINGS = {
    "stage": "sft", "model": DEFAULT, "batch": 16, "median": 128, "sigma": 0.8, "dtype": "float32", "rank": 16,
    "lr": 1e-4, "pairs": 5, "seed": 0, "peer_batch": 8,
}  # fmt: skip


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure; gives metrics, their spread, the number of pairs and the settings used."""
    used = SETTINGS | settings
    base = load(used["model"], used["dtype"])
    rng = np.random.default_rng(used["seed"])
    known = words(base)
    data = [rng.choice(known, n).astype(np.int32) for n in lengths(used["batch"] * (used["pairs"] + 1), used)]
    policy = Policy(base, LoraConfig(rank=used["rank"], alpha=2.0 * used["rank"]), trainable=True)
    trainer = Trainer(policy, Config(lr=used["lr"]))
    traces = [demonstration(str(i), ids) for i, ids in enumerate(data)]

    def ours(step: int) -> tuple[float, float]:
        batch = traces[step * used["batch"] : (step + 1) * used["batch"]]
        began = time.perf_counter()
        metrics = sft.step(trainer, batch)
        return time.perf_counter() - began, metrics["loss"]

    return compare(base, used, [{"input_ids": ids.tolist()} for ids in data], ours)


def demonstration(name: str, ids: np.ndarray) -> Trace:
    segment = Segment.given((), ids)
    segment.trainable[:] = True
    return Trace(id=name, task=name, domain="bench", seed=0, segments=(segment,))
