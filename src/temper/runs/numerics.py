"""`temper check numerics`: one model on this machine, its trainer against itself and against the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import torch

from temper.core import registry
from temper.models.load import load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy
from temper.training.invariance import TOLERANCE, Difference, differences, over_ranks, sample, stir
from temper.training.scoring import score
from temper.training.trainer import Config, Trainer

STORED = 1e-4  # log-probs are stored in fp32, whatever the model is


def check(model: str, dtype: str, device: str) -> Iterator[Difference]:
    """Every difference, the engine's log-probs last (absolute, nats). Raises what loading the model raises."""
    base = load(model, dtype, device)
    base_dtype = next(iter(base.tensors.values())).dtype
    adapter = LoraConfig()
    trainer = Trainer(Policy(base, adapter, trainable=True), Config())
    stir(trainer)
    rows = sample(base.config.vocab_size)
    yield from differences(trainer, rows)
    if base.device.type == "cpu" or torch.cuda.device_count() > 1:
        yield from over_ranks(trainer, rows)
    module, settings = registry.configure("engines", "torch")
    engine = module.create(settings, base=base, adapter=adapter)

    async def scored() -> list[np.ndarray]:
        try:
            await engine.publish(trainer.policy.trainable(), 1)
            return [(await engine.score(row.ids))[0] for row in rows]
        finally:
            await engine.close()

    theirs = asyncio.run(scored())
    mine = score(trainer.policy, rows, sum(len(row.ids) for row in rows))
    gaps = [np.abs(m.logprobs - t)[row.trained].max() for m, t, row in zip(mine, theirs, rows, strict=True)]
    yield Difference("log-probs of engine and trainer", float(max(gaps)), 0.0, max(TOLERANCE[base_dtype], STORED))
