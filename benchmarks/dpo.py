"""`temper bench dpo`: a step of DPO, ours against TRL's DPOTrainer, in turns, with reference log-probs measured before.

Same model, LoRA shape, optimiser, threads and batches of `batch` pairs in the same order; prompts and answers have
log-normal lengths (`median`, `sigma`). TRL 1.16 has no padding-free DPO (it says so and pads), so its batches are
padded. fp32, no gradient checkpointing. `loss_gap`: relative difference of both sums of losses.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from temper.core.trace import Sample, Segment, Trace, Verdict
from temper.models.load import DEFAULT, Base, load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy
from temper.training.stages import preference
from temper.training.stages.pairs import Pair
from temper.training.trainer import Config, Trainer

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from turns import compare, lengths, words

SETTINGS = {
    "stage": "dpo", "model": DEFAULT, "batch": 8, "median": 128, "sigma": 0.8, "dtype": "float32", "rank": 16,
    "lr": 1e-5, "pairs": 5, "seed": 0, "peer_batch": 2,
}  # fmt: skip


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure; gives metrics, their spread, the number of pairs and the settings used."""
    used = SETTINGS | settings
    base = load(used["model"], used["dtype"])
    data = draw(base, used)
    policy = Policy(base, LoraConfig(rank=used["rank"], alpha=2.0 * used["rank"]), trainable=True)
    trainer = Trainer(policy, Config(lr=used["lr"], micro_tokens=4096))
    pairs = [pair(base, str(i), *ids) for i, ids in enumerate(data)]
    references = preference.reference(trainer, pairs)

    def ours(step: int) -> tuple[float, float]:
        batch = pairs[step * used["batch"] : (step + 1) * used["batch"]]
        began = time.perf_counter()
        metrics = preference.step(trainer, batch, references)
        return time.perf_counter() - began, metrics["loss"]

    names = ("prompt", "chosen", "rejected")
    texts = [dict(zip(names, map(base.tokenizer.decode, ids), strict=True)) for ids in data]
    return compare(base, used, texts, ours)


def draw(base: Base, used: dict[str, Any]) -> list[list[np.ndarray]]:
    """Prompt, chosen and rejected ids of each pair, which read back from their text."""
    rng = np.random.default_rng(used["seed"])
    known = words(base)
    sizes = lengths(3 * used["batch"] * (used["pairs"] + 1), used).reshape(-1, 3)
    found = [[rng.choice(known, n).astype(np.int32) for n in row] for row in sizes]
    for prompt, *answers in found:
        for answer in answers:
            text = base.tokenizer.decode(prompt) + base.tokenizer.decode(answer)
            ids = base.tokenizer.encode(text, add_special_tokens=False).ids
            assert ids == [*prompt.tolist(), *answer.tolist()], "a drawn pair does not read back from its text"
    return found


def pair(base: Base, name: str, prompt: np.ndarray, chosen: np.ndarray, rejected: np.ndarray) -> Pair:
    sides = [sample(base, f"{name}-{side}", prompt, ids) for side, ids in (("chosen", chosen), ("rejected", rejected))]
    return Pair(name, *sides)


def sample(base: Base, name: str, prompt: np.ndarray, answer: np.ndarray) -> Sample:
    """The answer ends with the stop token, which TRL appends."""
    written = Segment.given((), np.append(answer, base.stop_ids[0]), parent=0)
    written.trainable[:], written.versions[:] = True, 0
    trace = Trace(id=name, task=name, domain="bench", seed=0, segments=(Segment.given((), prompt), written))
    return Sample(trace, Verdict.ruled("graded", name, "bench"))
