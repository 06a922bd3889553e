"""Several policies served at once: each as alone, publishes by policy, prefixes by policy, one leaving."""

import asyncio

import numpy as np
import pytest
import torch

from temper.core.errors import ConfigError
from temper.core.protocols import SamplingParams
from temper.engines.chat import EngineChat
from temper.engines.torch import Config, create
from temper.models.attention import Packed
from temper.models.load import Base, load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy

pytestmark = pytest.mark.usefixtures("one_thread")

ADAPTERS = {"": LoraConfig(rank=4, targets=("q_proj", "v_proj")), "math": LoraConfig(rank=2, targets=("down_proj",))}


@pytest.fixture(scope="module")
def base() -> Base:
    return load("tiny:", dtype="float64")


def weights(base: Base, name: str, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {key: p.shape for key, p in Policy(base, ADAPTERS[name]).trainable().items()}
    return {key: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.1 for key, shape in shapes.items()}


def prompts(*lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, 250, n).astype(np.int32) for n in lengths]


async def collect(engine, ids, **params):
    """All of a request: ids, log-probs, versions, why it stopped."""
    chunks = [chunk async for chunk in engine.generate(ids, SamplingParams(**params))]
    ids, logprobs, versions = (np.concatenate([getattr(c, n) for c in chunks]) for n in ("ids", "logprobs", "versions"))
    return ids, logprobs, versions, chunks[-1].stop


async def both(base: Base, **config):
    """An engine with two policies, each at version 1."""
    engine = create(Config(**config), base=base, adapter=ADAPTERS[""])
    math = await engine.add("math", ADAPTERS["math"])
    await engine.publish(weights(base, "", 1), 1)
    await math.publish(weights(base, "math", 2), 1)
    return engine, math


def exact(base: Base, name: str, seed: int, prompt: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Log-probs of `ids` by the trainer's forward pass of a policy alone."""
    policy = Policy(base, ADAPTERS[name])
    policy.load_trainable(weights(base, name, seed))
    tokens = torch.from_numpy(np.append(prompt, ids).astype(np.int64))
    with torch.no_grad():
        hidden = policy.hidden(tokens, torch.arange(len(tokens)), Packed([len(tokens)]))
    found = (hidden @ policy.head.T)[:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
    return found[len(prompt) - 1 :].numpy()


def test_two_policies_in_one_batch_give_what_each_gives_alone(base):
    asked = prompts(30, 5, 30, 61)

    async def go(chosen):
        engine, math = await both(base, slots=8, prefill_tokens=40)
        turns = [collect((engine, math)[i % 2], p, max_tokens=50, seed=i) for i, p in enumerate(asked)]
        found = await asyncio.gather(*(turn for i, turn in enumerate(turns) if i % 2 in chosen))
        steps = engine.stats().steps
        for i, turn in enumerate(turns):
            if i % 2 not in chosen:
                turn.close()
        await engine.close()
        return found, steps

    (mixed, steps), singles = asyncio.run(go({0, 1})), [asyncio.run(go({i})) for i in (0, 1)]
    assert steps < sum(n for _, n in singles)  # they shared steps
    for i, prompt in enumerate(asked):
        ids, logprobs, versions, _ = mixed[i]
        expected = singles[i % 2][0][i // 2]
        assert ids.tolist() == expected[0].tolist()
        assert np.abs(logprobs - expected[1]).max() < 1e-6  # chunks hold float32
        assert set(versions.tolist()) == {1}
        name, seed = ("", 1) if i % 2 == 0 else ("math", 2)
        assert np.abs(logprobs - exact(base, name, seed, prompt, ids)).max() < 1e-5


def test_a_publish_concerns_one_policy_alone(base):
    prompt = prompts(40)[0]

    async def go(publish):
        engine, math = await both(base)
        job = asyncio.create_task(collect(math, prompt, max_tokens=80))
        other = asyncio.create_task(collect(engine, prompt, max_tokens=80))
        while engine.stats().sampled < 40:
            await asyncio.sleep(0.001)
        before = engine.stats().prompt_computed
        if publish:
            await engine.publish(weights(base, "", 3), 2)
        kept, (_, _, versions, _) = await job, await other
        again = await collect(math, np.append(prompt, kept[0][:-1]), max_tokens=1)
        computed = engine.stats().prompt_computed - before
        await engine.close()
        return kept, versions, math.version, engine.version, computed, again

    kept, versions, *at, computed, _ = asyncio.run(go(publish=True))
    quiet, _, *_, nothing, _ = asyncio.run(go(publish=False))
    assert at == [1, 2]
    assert set(versions.tolist()) == {1, 2}
    assert kept[0].tolist() == quiet[0].tolist()
    assert np.array_equal(kept[1], quiet[1])
    assert set(kept[2].tolist()) == {1}
    assert nothing <= 1 < 40 < computed < 130  # one prefills again; math's prefix is still known


def test_a_prefix_is_found_by_its_own_policy_only(base):
    prompt = prompts(64)[0]

    async def go():
        engine, math = await both(base)
        await collect(engine, prompt, max_tokens=1)
        reused = [engine.stats().prompt_reused]
        found = await collect(math, prompt, max_tokens=1)
        reused.append(engine.stats().prompt_reused)
        await collect(math, prompt, max_tokens=1)
        reused.append(engine.stats().prompt_reused)
        scores = await math.score(prompt), await engine.score(prompt)
        await engine.close()
        return reused, found, scores

    reused, found, scores = asyncio.run(go())
    assert reused == [0, 0, 63]
    assert np.allclose(found[1], exact(base, "math", 2, prompt, found[0]), atol=1e-5)
    for (name, seed), (logprobs, _) in zip((("math", 2), ("", 1)), scores, strict=True):
        assert np.allclose(logprobs[1:], exact(base, name, seed, prompt[:1], prompt[1:]), atol=1e-5)


def test_a_policy_that_leaves_takes_only_its_own_requests_along(base):
    async def go():
        engine, math = await both(base)
        with pytest.raises(ConfigError, match="already there"):
            await engine.add("math", ADAPTERS["math"])
        leaving = asyncio.create_task(collect(math, prompts(20)[0], max_tokens=4000))
        staying = asyncio.create_task(collect(engine, prompts(20)[0], max_tokens=60))
        while engine.stats().sampled < 20:
            await asyncio.sleep(0.001)
        late = asyncio.create_task(collect(math, prompts(20)[0], max_tokens=4000))
        await asyncio.gather(math.close(), math.close())
        for call in (
            lambda: collect(math, prompts(20)[0]),
            lambda: math.publish(weights(base, "math", 4), 2),
            lambda: math.score(prompts(20)[0]),
        ):
            with pytest.raises(ConfigError, match="math"):
                await call()
        stops = (await leaving)[3], (await staying)[3], (await late)[3]
        back = await engine.add("math", ADAPTERS["math"])
        await back.publish(weights(base, "math", 5), 1)
        ids, logprobs, *_ = await collect(back, prompts(20)[0], max_tokens=20)
        stats = engine.stats()
        await engine.close()
        return stops, ids, logprobs, stats

    stops, ids, logprobs, stats = asyncio.run(go())
    assert stops == ("aborted", "length", "aborted")
    assert stats.running == stats.waiting == 0
    assert np.abs(logprobs - exact(base, "math", 5, prompts(20)[0], ids)).max() < 1e-5


def test_a_chat_over_an_added_policy_says_whose_tokens_it_gives(base):
    from temper.core.task import Message
    from temper.models.chat import chatml

    async def go():
        engine, math = await both(base)
        format = chatml.create(chatml.Config(), base.tokenizer)
        chats = [EngineChat(engine, format, "a"), EngineChat(math, format, "b")]
        params = SamplingParams(max_tokens=8)
        found = await asyncio.gather(*(chat.reply([Message("user", "Hi.")], (), params) for chat in chats))
        await engine.close()
        return [reply.segments[-1].policy for reply in found]

    assert asyncio.run(go()) == ["a", "b"]
