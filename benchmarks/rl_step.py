"""`temper bench rl-step`: one step of asynchronous GRPO's inner work, ours against TRL's GRPOTrainer, taking turns.

A step samples `rollouts` answers to `rollouts / group` prompts, rewards them, computes the gradient, updates, and makes
the new weights sampleable. Both do it with the same model, prompts, group size, answer lengths (exactly
`max_new_tokens`: the end token is off), LoRA shape and dtype, without gradient checkpointing, on the same threads. The
reward is the answer's index in its group modulo 2, so that every group teaches and none is skipped.

TRL runs as a child in its own virtual environment (`peers/turns.py`), step by step on our word, with its defaults: of
larger micro-batches than 8 (`peer_batch`) it takes over 16 GiB here. Ours is the spine's path: engine, groups,
`training.stages.rl`, publish. The first pair warms both up and does not count.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from temper.core.protocols import SamplingParams
from temper.core.trace import Group, Sample, Segment, Trace, Verdict
from temper.engines import torch as engines
from temper.models.load import DEFAULT, Base, load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy
from temper.training import trainer
from temper.training.stages import rl

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from turns import Trl

SETTINGS = {
    "model": DEFAULT, "rollouts": 64, "group": 8, "prompt_tokens": 256, "max_new_tokens": 32, "dtype": "float32",
    "gradient_checkpointing": False, "rank": 16, "lr": 1e-5, "pairs": 5, "seed": 0, "peer_batch": 8,
}  # fmt: skip


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure; gives metrics, their spread, the number of pairs and the settings used."""
    used = SETTINGS | settings
    base = load(used["model"], used["dtype"])
    prompts = draw(base, used["rollouts"] // used["group"], used["prompt_tokens"], used["seed"])
    with tempfile.TemporaryDirectory() as folder:
        texts = [base.tokenizer.decode(p) for p in prompts]
        peer = Trl(base, "trl_grpo.py", used | {"prompts": texts, "steps": used["pairs"] + 1}, Path(folder))
        try:
            seconds = asyncio.run(take_turns(base, prompts, used, peer))
        finally:
            peer.close()
    ratios = [theirs / ours for ours, theirs in zip(seconds["seconds_ours"], seconds["seconds_trl"], strict=True)]
    found = {"vs_trl": ratios} | seconds
    metrics = {name: statistics.median(values) for name, values in found.items()}
    spread = {name: [min(values), metrics[name], max(values)] for name, values in found.items()}
    return {"metrics": metrics, "spread": spread, "pairs": used["pairs"], "settings": used}


def draw(base: Base, count: int, tokens: int, seed: int) -> list[np.ndarray]:
    """Prompts of exactly `tokens` random whole-word tokens, so that TRL's text gives the same ids (checked)."""
    words = [i for token, i in base.tokenizer.get_vocab().items() if token[0] == "Ġ" and token[1:].isascii()]
    words = sorted(i for i in words if base.tokenizer.decode([i]).strip().isalpha())
    rng = np.random.default_rng(seed)
    prompts: list[np.ndarray] = []
    while len(prompts) < count:
        ids = rng.choice(words, tokens).astype(np.int32)
        if base.tokenizer.encode(base.tokenizer.decode(ids), add_special_tokens=False).ids == ids.tolist():
            prompts.append(ids)
    return prompts


async def take_turns(base: Base, prompts: list[np.ndarray], used: dict[str, Any], peer: Trl) -> dict[str, list[float]]:
    """Seconds of each side's steps, the warm-up pair left out."""
    ours = Ours(base, prompts, used)
    found: dict[str, list[float]] = {"seconds_ours": [], "seconds_trl": []}
    try:
        for pair in range(used["pairs"] + 1):
            mine, theirs = await ours.step(), peer.step()["seconds"]
            print(f"pair {pair}: {mine:.1f} s, TRL {theirs:.1f} s", file=sys.stderr, flush=True)
            if pair:
                found["seconds_ours"].append(mine)
                found["seconds_trl"].append(theirs)
    finally:
        await ours.engine.close()
    return found


class Ours:
    """The spine's path without rollouts and scheduling: engine, groups, one update, publish."""

    def __init__(self, base: Base, prompts: list[np.ndarray], used: dict[str, Any]) -> None:
        adapter = LoraConfig(rank=used["rank"], alpha=2.0 * used["rank"])
        self.prompts, self.group = prompts, used["group"]
        self.params = SamplingParams(max_tokens=used["max_new_tokens"])
        self.engine = engines.create(engines.Config(slots=used["rollouts"]), base=base, adapter=adapter)
        self.trainer = trainer.Trainer(Policy(base, adapter, trainable=True), trainer.Config(lr=used["lr"]))

    async def step(self) -> float:
        began = time.perf_counter()
        groups = [self._sample(n, prompt) for n, prompt in enumerate(self.prompts)]
        metrics = rl.step(self.trainer, await asyncio.gather(*groups), rl.Config())
        assert metrics["samples_without_gradient"] == 0
        await self.engine.publish(self.trainer.policy.trainable(), self.trainer.version)
        return time.perf_counter() - began

    async def _sample(self, number: int, prompt: np.ndarray) -> Group:
        name = f"{self.trainer.version}-{number}"
        traces = await asyncio.gather(*(self._answer(f"{name}-{i}", prompt, i) for i in range(self.group)))
        samples = [Sample(t, Verdict.ruled("graded", t.id, "index", score=t.seed % 2)) for t in traces]
        return Group(name, "bench", tuple(samples))

    async def _answer(self, name: str, prompt: np.ndarray, seed: int) -> Trace:
        params = msgspec.structs.replace(self.params, seed=zlib.crc32(name.encode()))
        chunks = [c async for c in self.engine.generate(prompt, params, name)]
        columns = ("ids", "logprobs", "versions")
        ids, logprobs, versions = (np.concatenate([getattr(c, k) for c in chunks]) for k in columns)
        answer = Segment(
            parent=0, author="policy", messages=(), ids=ids, trainable=np.ones(len(ids), bool), logprobs=logprobs,
            versions=versions,
        )  # fmt: skip
        segments = (Segment.given((), prompt), answer)
        return Trace(id=name, task=name, domain="bench", seed=seed, segments=segments)
