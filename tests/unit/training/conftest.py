"""A random tiny policy, and groups of traces as a rollout would leave them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import settings

from temper.core.trace import Group, Sample, Segment, Trace, Verdict
from temper.models.load import Base, load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy
from temper.training.trainer import Config, Trainer

settings.register_profile("training", deadline=None)  # a busy machine is no defect
settings.load_profile("training")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """At this size threads only wait for each other, for minutes where the machine is busy."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def bases() -> dict[str, Base]:
    return {dtype: load("tiny:seed=1", dtype) for dtype in ("float32", "float64")}


@pytest.fixture
def trainer(bases) -> Callable[..., Trainer]:
    """`trainer(dtype=..., full=..., **config)`: LoRA by default; B is not zero, so that A has gradients too."""

    def build(dtype: str = "float32", full: bool = False, **config) -> Trainer:
        policy = Policy(bases[dtype], None if full else LoraConfig(rank=4), trainable=True)
        rng = np.random.default_rng(0)
        noise = {k: p.new_tensor(rng.normal(0, 0.02, p.shape)) for k, p in policy.trainable().items() if "lora_B" in k}
        policy.load_trainable({k: noise.get(k, p) for k, p in policy.trainable().items()})
        return Trainer(policy, Config(**config))

    return build


def _sampled(ids: np.ndarray, parent: int, version: int = 0) -> Segment:
    """A segment that the policy sampled under `version` with log-probs near those of a random model."""
    n = len(ids)
    logprobs = -5.5 + 0.3 * np.sin(np.arange(n) + ids.sum())
    return Segment(
        parent=parent,
        author="policy",
        messages=(),
        ids=ids,
        trainable=np.ones(n, bool),
        logprobs=logprobs.astype(np.float32),
        versions=np.full(n, version, np.int32),
    )


@pytest.fixture(scope="session")
def group() -> Callable[..., Group]:
    """`group(name, rewards, ...)`, see `_group`."""
    return _group


def _group(name: str, rewards: list[float | None], turns: int = 1, version: int = 0) -> Group:
    """Traces over one prompt with answers of 1 to 9 tokens; a reward of None is a masked verdict."""
    rng = np.random.default_rng([*name.encode()])
    prompt = rng.integers(3, 259, 12).astype(np.int32)
    samples = []
    for i, reward in enumerate(rewards):
        segments = [Segment.given((), prompt)]
        for turn in range(turns):
            segments.append(_sampled(rng.integers(3, 259, rng.integers(1, 10)).astype(np.int32), 2 * turn, version))
            segments.append(Segment.given((), rng.integers(3, 259, 4), parent=2 * turn + 1))
        trace = Trace(id=f"{name}-{i}", task=name, domain="d", seed=i, segments=tuple(segments[:-1]))
        what = "graded" if reward is not None else "verifier-crash"
        verdict = Verdict.ruled(what, trace.id, "v", score=reward or 0.0)
        samples.append(Sample(trace, verdict))
    return Group(name, "d", tuple(samples))
