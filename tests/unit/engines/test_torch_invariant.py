"""The torch engine's batch-invariant steps: what a request gets is the same bits whatever else happens to run."""

import asyncio

import numpy as np
import pytest
import torch

from temper.core.errors import RefusedError
from temper.core.protocols import SamplingParams
from temper.engines.torch import Config, create
from temper.engines.torch.engine import TorchEngine
from temper.models.attention import Packed
from temper.models.load import Base, load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy

pytestmark = pytest.mark.usefixtures("one_thread")

ADAPTER = LoraConfig(rank=4)


@pytest.fixture(scope="module")
def base() -> Base:
    return load("tiny:")


def weights(base: Base) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    shapes = {name: p.shape for name, p in Policy(base, ADAPTER).trainable().items()}
    return {name: torch.randn(shape, generator=generator) * 0.1 for name, shape in shapes.items()}


def asked(base: Base) -> list[tuple[np.ndarray, SamplingParams]]:
    """Prompts that share beginnings of many lengths, one longer than a power of two of keys, and their limits."""
    rng = np.random.default_rng(3)
    shared = rng.integers(3, base.config.vocab_size, 40)
    found = []
    sizes = [(0, 3, 12), (7, 30, 30), (40, 1, 40), (40, 21, 9), (33, 64, 20), (40, 9, 40)]
    for seed, (kept, own, new) in enumerate(sizes):
        prompt = np.concatenate([shared[:kept], rng.integers(3, base.config.vocab_size, own)]).astype(np.int32)
        found.append((prompt, SamplingParams(max_tokens=new, seed=seed)))
    return found


async def sampled(engine, prompt: np.ndarray, params: SamplingParams) -> list[tuple[int, float]]:
    chunks = [chunk async for chunk in engine.generate(prompt, params)]
    return [(int(i), float(p)) for chunk in chunks for i, p in zip(chunk.ids, chunk.logprobs, strict=True)]


def test_tokens_and_logprobs_are_the_same_bits_alone_in_a_crowd_and_however_prompts_are_cut(base):
    asks = asked(base)

    async def found(together, order, **more):
        engine = create(Config(batch_invariant=True, **more), base=base, adapter=ADAPTER)
        await engine.publish(weights(base), 1)
        if together:
            answers = await asyncio.gather(*(sampled(engine, *asks[i]) for i in order))
        else:
            answers = [await sampled(engine, *asks[i]) for i in order]
        await engine.close()
        return dict(zip(order, answers, strict=True))

    forwards = range(len(asks))
    crowd = asyncio.run(found(True, forwards))
    assert asyncio.run(found(True, forwards[::-1], prefill_tokens=5, slots=2)) == crowd
    assert asyncio.run(found(False, forwards, prefix_mib=0)) == crowd


def test_a_conversation_goes_on_with_the_same_bits_whether_its_cache_was_kept_or_made_anew(base):
    prompt, params = asked(base)[1]

    async def twice():
        engine = create(Config(batch_invariant=True), base=base)
        said = await sampled(engine, prompt, params)
        history = np.concatenate([prompt, np.array([token for token, _ in said], np.int32), prompt[:5]])
        kept = await sampled(engine, history, params)
        await engine.publish({}, 1)  # which forgets every prefix
        anew = await sampled(engine, history, params)
        await engine.close()
        return kept, anew

    kept, anew = asyncio.run(twice())
    assert kept == anew


def test_its_logprobs_are_the_trainers(base):
    prompt, params = asked(base)[4]

    async def one():
        engine = create(Config(batch_invariant=True), base=base)
        found = await sampled(engine, prompt, params)
        await engine.close()
        return found

    found = asyncio.run(one())
    ids = torch.from_numpy(np.concatenate([prompt, [token for token, _ in found]]).astype(np.int64))
    policy = Policy(base)
    with torch.no_grad():
        logits = policy.hidden(ids, torch.arange(len(ids)), Packed([len(ids)])) @ policy.head.T
    exact = logits[:-1].log_softmax(-1).gather(1, ids[1:, None])[len(prompt) - 1 :, 0].numpy()
    np.testing.assert_allclose([logprob for _, logprob in found], exact, atol=2e-5)


class Uneven(Policy):
    """Stands for a library whose products treat the rows of a batch differently."""

    def hidden(self, ids, positions, layout):
        found = super().hidden(ids, positions, layout)
        return found * (1 + 1e-6 * torch.arange(len(found))[:, None])


def test_a_machine_where_rows_are_not_alike_is_refused(base):
    with pytest.raises(RefusedError, match="depend on its row in a batch, by up to"):
        TorchEngine(Config(batch_invariant=True), Uneven(base), None)
