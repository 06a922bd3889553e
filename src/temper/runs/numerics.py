"""`temper check numerics`: one model on this machine, its trainer against itself and against the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from temper.core import registry
from temper.core.protocols import Chunk, Engine, SamplingParams
from temper.models.load import load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy
from temper.training import invariance
from temper.training.invariance import ANSWER, PROMPT, TOLERANCE, Difference, one_by_one
from temper.training.packing import Row
from temper.training.trainer import Config, Trainer

STORED = 1e-4  # log-probs are stored in fp32, whatever the model is
PUBLISHED = 3  # versions that sample an answer


def check(model: str, dtype: str, device: str) -> Iterator[Difference]:
    """Every difference, the engine's last. Raises what loading the model raises."""
    base = load(model, dtype, device)
    trainer = Trainer(Policy(base, LoraConfig(), trainable=True), Config())
    invariance.stir(trainer)
    rows = invariance.sample(base.config.vocab_size)
    yield from invariance.differences(trainer, rows)
    if base.device.type == "cpu" or torch.cuda.device_count() > 1:
        yield from invariance.over_ranks(trainer, rows)
    yield from through_engine(trainer, rows)


def through_engine(trainer: Trainer, rows: Sequence[Row]) -> Iterator[Difference]:
    """Log-probs of engine and trainer (absolute, nats); and what training at a learning rate of 0 may not change.

    That is: answers sampled asynchronously, while weights that are all alike are published, are trained like those that
    the current weights sampled.
    """
    policy = trainer.policy
    module, settings = registry.configure("engines", "torch")
    engine = module.create(settings, base=policy.base, adapter=policy.adapter)
    theirs, sampled = asyncio.run(_asked(engine, trainer, rows))
    limit = max(TOLERANCE[policy.head.dtype], STORED)
    pairs = zip(trainer.score(rows, sum(len(row.ids) for row in rows)), theirs, rows, strict=True)
    gap = max(float(np.abs(mine.logprobs - found)[row.trained].max()) for mine, found, row in pairs)
    yield Difference("log-probs of engine and trainer", gap, 0.0, limit)
    trainer.version = int(sampled[-1].streams["version"][-1])
    current = np.full(PROMPT + ANSWER, trainer.version)
    fresh = [
        _row(row.ids, scored.logprobs, current, number)
        for number, (row, scored) in enumerate(zip(sampled, trainer.score(sampled), strict=True))
    ]
    reference = invariance.gradients(trainer, one_by_one(fresh))
    yield invariance.difference("asynchronous, learning rate 0", trainer, one_by_one(sampled), reference, limit)


async def _asked(engine: Engine, trainer: Trainer, rows: Sequence[Row]) -> tuple[list[np.ndarray], list[Row]]:
    """Log-probs of the rows, and answers to their prompts, each sampled while version follows version."""
    try:
        await engine.publish(trainer.policy.trainable(), 1)
        scored = [(await engine.score(row.ids))[0] for row in rows]
        return scored, [await _answer(engine, trainer, row.ids[:PROMPT], number) for number, row in enumerate(rows)]
    finally:
        await engine.close()


async def _answer(engine: Engine, trainer: Trainer, prompt: np.ndarray, number: int) -> Row:
    chunks, last = list[Chunk](), engine.version + PUBLISHED - 1
    async for chunk in engine.generate(prompt, SamplingParams(max_tokens=ANSWER, seed=number)):
        chunks.append(chunk)
        if engine.version < last:
            await engine.publish(trainer.policy.trainable(), engine.version + 1)
    ids, logprobs, versions = (
        np.concatenate([before, *(getattr(chunk, name) for chunk in chunks)])
        for name, before in (("ids", prompt), ("logprobs", np.zeros(PROMPT)), ("versions", np.full(PROMPT, -1)))
    )
    return _row(ids, logprobs, versions, number)


def _row(ids: np.ndarray, logprobs: np.ndarray, versions: np.ndarray, number: int) -> Row:
    weight = np.append(np.zeros(PROMPT), np.full(ANSWER, 1 / ANSWER))
    advantage = np.full(len(ids), (-1.0) ** number * (1 + number))
    streams = {"w_pg": weight, "advantage": advantage, "behaviour": logprobs, "version": versions}
    return Row(name=f"answer {number}", ids=ids, streams=streams)
