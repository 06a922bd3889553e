"""The torch engine with a real (tiny) model, against transformers' own generation and the trainer's forward pass."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from temper.core import registry
from temper.core.blame import FaultError
from temper.core.errors import ConfigError, CorruptError
from temper.core.protocols import SamplingParams
from temper.engines.torch import Config, create
from temper.models.attention import Packed
from temper.models.load import DEFAULT, Base, load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy

pytestmark = pytest.mark.usefixtures("one_thread")

ADAPTER = LoraConfig(rank=4, targets=("q_proj", "v_proj", "down_proj"))


@pytest.fixture(scope="module")
def base() -> Base:
    return load("tiny:")


def prompts(base: Base, *lengths: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(3, base.config.vocab_size, n).astype(np.int32) for n in lengths]


def adapter_weights(base: Base, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: p.shape for name, p in Policy(base, ADAPTER).trainable().items()}
    return {name: torch.randn(shape, generator=generator) * 0.1 for name, shape in shapes.items()}


async def collect(engine, ids, name="", stop_after=0, **params):
    """All of a request: ids, log-probs, versions, why it stopped."""
    found, stop = [], ""
    async for chunk in engine.generate(ids, SamplingParams(**params), name):
        found += zip(chunk.ids.tolist(), chunk.logprobs.tolist(), chunk.versions.tolist(), strict=True)
        stop = chunk.stop
        if stop_after and len(found) >= stop_after:
            break
    columns = zip(*found, strict=True) if found else ([], [], [])
    return *(np.array(column) for column in columns), stop


async def running(engine, tokens: int) -> None:
    """Until the engine has sampled so many more tokens."""
    target = engine.stats().sampled + tokens
    while engine.stats().sampled < target:
        await asyncio.sleep(0.001)


def exact(policy: Policy, ids: np.ndarray) -> np.ndarray:
    """Log-probs by the trainer's forward pass."""
    tokens = torch.from_numpy(ids.astype(np.int64))
    with torch.no_grad():
        logits = policy.hidden(tokens, torch.arange(len(ids)), Packed([len(ids)])) @ policy.head.T
    return logits[:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0].numpy()


def transformers_greedy(base: Base, prompt: np.ndarray, n: int) -> list[int]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(base.config, attn_implementation="sdpa").eval()
    model.load_state_dict(base.tensors, strict=False)
    model.tie_weights()
    ids = torch.from_numpy(prompt.astype(np.int64))[None]
    mask = torch.ones_like(ids)
    settings = {"max_new_tokens": n, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(ids, attention_mask=mask, **settings)[0, len(prompt) :].tolist()


def test_greedy_output_is_that_of_transformers_whatever_shares_the_batch(base):
    asked = prompts(base, 5, 17, 40, 1, 90, 3)
    asked += [asked[2]] * 3  # a group

    async def go():
        engine = create(Config(slots=4, prefill_tokens=24), base=base)
        found = await asyncio.gather(*(collect(engine, p, max_tokens=80, temperature=0.0) for p in asked))
        await engine.close()
        return found

    for prompt, (ids, logprobs, _, stop) in zip(asked, asyncio.run(go()), strict=True):
        assert ids.tolist() == transformers_greedy(base, prompt, 80)
        assert stop == "length"
        assert np.abs(exact(Policy(base), np.append(prompt, ids))[len(prompt) - 1 :] - logprobs).max() < 1e-4


@pytest.mark.model
@pytest.mark.slow
def test_greedy_output_of_the_default_base_is_that_of_transformers():
    base = load(DEFAULT)
    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    prompt = np.array(base.tokenizer.encode(text, add_special_tokens=False).ids, np.int32)

    async def go():
        engine = create(Config(slots=2), base=base)
        found = await asyncio.gather(*(collect(engine, prompt, max_tokens=24, temperature=0.0) for _ in range(2)))
        await engine.close()
        return found

    expected = transformers_greedy(base, prompt, 24)
    assert [ids.tolist() for ids, *_ in asyncio.run(go())] == [expected, expected]
    assert "Paris" in base.tokenizer.decode(expected)


def test_a_seeded_request_gives_the_same_tokens_alone_and_in_a_crowd(base):
    asked = prompts(base, 30, 30, 12, 50, 7)

    async def go(chosen):
        engine = create(Config(slots=3), base=base)
        jobs = [collect(engine, asked[i], max_tokens=40, temperature=0.9, top_p=0.9, seed=i) for i in chosen]
        found = await asyncio.gather(*jobs)
        await engine.close()
        return found

    alone = asyncio.run(go([1]))[0]
    crowd = asyncio.run(go(range(5)))[1]
    assert alone[0].tolist() == crowd[0].tolist()
    assert np.allclose(alone[1], crowd[1], atol=1e-5)


def test_logprobs_are_the_trainers_for_each_tokens_own_version_over_publishes(base):
    asked = prompts(base, 20, 20, 33, 8)
    asked.append(asked[0])

    async def go():
        engine = create(Config(slots=8), base=base, adapter=ADAPTER)
        jobs = [asyncio.create_task(collect(engine, p, max_tokens=120, seed=i)) for i, p in enumerate(asked)]
        for version in (1, 2, 3):
            await running(engine, 40)
            await engine.publish(adapter_weights(base, version), version)
        found = await asyncio.gather(*jobs)
        await engine.close()
        return found

    policies = {0: Policy(base, ADAPTER)}
    for version in (1, 2, 3):
        policies[version] = Policy(base, ADAPTER)
        policies[version].load_trainable(adapter_weights(base, version))
    seen = set()
    for prompt, (ids, logprobs, versions, _) in zip(asked, asyncio.run(go()), strict=True):
        assert (np.diff(versions) >= 0).all()
        for version in set(versions.tolist()):
            now = exact(policies[version], np.append(prompt, ids))[len(prompt) - 1 :]
            assert np.abs(now - logprobs)[versions == version].max() < 1e-4
        seen |= set(versions.tolist())
    assert seen == {0, 1, 2, 3}


def test_keeping_the_cache_over_a_publish_leaves_a_gap_that_is_reported(base):
    async def go(mode):
        engine = create(Config(), base=base, adapter=ADAPTER)
        job = asyncio.create_task(collect(engine, prompts(base, 30)[0], max_tokens=100))
        await running(engine, 20)
        await engine.publish(adapter_weights(base, 1), 1, mode)
        await job
        await engine.close()
        return engine.stats()

    kept, recomputed = asyncio.run(go("keep")), asyncio.run(go("recompute"))
    assert kept.keep_gap_tokens > 0
    assert 1e-3 < kept.keep_gap_mean < kept.keep_gap_max
    assert recomputed.keep_gap_tokens == 0
    assert recomputed.prompt_computed > kept.prompt_computed


def test_full_fine_tuning_publishes_every_weight(base):
    changed = {name: t * 1.01 for name, t in base.tensors.items()}

    async def go():
        engine = create(Config(), base=base, full=True)
        await engine.publish(changed, 1)
        found = await collect(engine, prompts(base, 9)[0], max_tokens=10)
        await engine.close()
        return found

    ids, logprobs, versions, _ = asyncio.run(go())
    policy = Policy(base, trainable=True)
    policy.load_trainable(changed)
    assert np.abs(exact(policy, np.append(prompts(base, 9)[0], ids))[8:] - logprobs).max() < 1e-4
    assert versions.tolist() == [1] * 10


def test_a_group_is_prefilled_once_and_a_next_turn_goes_on_from_the_last(base):
    prompt = prompts(base, 64)[0]

    async def go():
        engine = create(Config(), base=base)
        group = await asyncio.gather(*(collect(engine, prompt, max_tokens=20, seed=i) for i in range(8)))
        first = engine.stats()
        turn = np.concatenate([prompt, group[3][0], prompts(base, 11, seed=5)[0]])
        await collect(engine, turn, max_tokens=4)
        second = engine.stats()
        await engine.close()
        return first, second

    first, second = asyncio.run(go())
    assert (first.prompt_computed, first.prompt_reused) == (64, 7 * 63)
    assert second.prompt_computed - first.prompt_computed == 11 + 1  # what is new, and the last token sampled before


def test_old_prefixes_never_serve_new_weights(base):
    prompt = prompts(base, 50)[0]

    async def go():
        engine = create(Config(), base=base, adapter=ADAPTER)
        engine.pin(prompt)
        await collect(engine, prompt, max_tokens=5)
        with torch.inference_mode():
            for span, _ in engine._runner.tree.match(prompt):  # poison what is kept of version 0
                span.fill_(1e4)
        await engine.publish(adapter_weights(base, 1), 1, "keep")
        ids, logprobs, _, _ = await collect(engine, prompt, max_tokens=5)
        await engine.close()
        return ids, logprobs

    ids, logprobs = asyncio.run(go())
    policy = Policy(base, ADAPTER)
    policy.load_trainable(adapter_weights(base, 1))
    assert np.abs(exact(policy, np.append(prompt, ids))[49:] - logprobs).max() < 1e-4


def test_memory_is_bounded_and_given_back(base):
    async def go():
        engine = create(Config(slots=16, row_mib=1, prefix_mib=1), base=base)
        peak, jobs = 0, [collect(engine, p, max_tokens=60) for p in prompts(base, *[100] * 24)]
        work = asyncio.gather(*jobs)
        while not work.done():
            await asyncio.sleep(0.002)
            peak = max(peak, engine.stats().row_bytes + engine.stats().prefix_bytes)
        with pytest.raises(ConfigError, match="row_mib"):
            await collect(engine, prompts(base, 600)[0], max_tokens=600)
        await engine.close()
        return peak, engine.stats()

    peak, last = asyncio.run(go())
    assert 1 << 19 < peak <= 5 << 20  # prefixes 1 MiB, rows twice that on the two shelves that rows of 101..160 need
    assert last.row_bytes <= 1 << 20


def test_many_short_requests_fit_where_room_is_small(base):
    """Each is charged for its five tokens, and lies in a row of 64."""

    async def go():
        engine = create(Config(slots=64, row_mib=1), base=base)
        found = await asyncio.gather(*(collect(engine, p, max_tokens=4) for p in prompts(base, *[1] * 64)))
        await engine.close()
        return [len(ids) for ids, *_ in found]

    assert asyncio.run(go()) == [4] * 64


@pytest.mark.parametrize("wrong", [{"slots": 0}, {"prefill_tokens": 0}, {"row_mib": -1}, {"prefix_mib": -1}])
def test_an_engine_that_could_never_run_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        registry.configure("engines", {"kind": "torch", **wrong})


@pytest.mark.parametrize("temperature", [-1.0, 1e-39, float("nan")])
def test_a_temperature_that_nothing_can_be_sampled_at_ends_its_own_request_alone(base, temperature):
    async def go():
        engine = create(Config(), base=base)
        other = asyncio.create_task(collect(engine, prompts(base, 10)[0], max_tokens=20))
        with pytest.raises(ConfigError, match="temperature"):
            await collect(engine, prompts(base, 5)[0], max_tokens=4, temperature=temperature)
        found = await other
        await engine.close()
        return found

    assert len(asyncio.run(go())[0]) == 20


def test_stops_by_id_by_text_and_at_the_models_window(base):
    prompt = prompts(base, 20)[0]

    async def go():
        engine = create(Config(), base=base)
        plain = (await collect(engine, prompt, max_tokens=30, temperature=0.0))[0]
        text = base.tokenizer.decode(plain[:6].tolist(), skip_special_tokens=False)[-3:]
        by_id = await collect(engine, prompt, max_tokens=30, temperature=0.0, stop_ids=(int(plain[4]),))
        by_text = await collect(engine, prompt, max_tokens=30, temperature=0.0, stop=("never", text))
        window = await collect(engine, prompts(base, base.context - 3)[0], max_tokens=30)
        full = await collect(engine, prompts(base, base.context)[0], max_tokens=30)
        await engine.close()
        return plain, text, by_id, by_text, window, full

    plain, text, by_id, by_text, window, full = asyncio.run(go())
    assert by_id[3] == "stop"
    assert by_id[0].tolist() == plain[: plain.tolist().index(plain[4]) + 1].tolist()
    assert by_text[3] == "stop"
    assert text in base.tokenizer.decode(by_text[0].tolist(), skip_special_tokens=False)
    assert len(by_text[0]) <= 6
    assert (len(window[0]), window[3]) == (3, "context")
    assert (len(full[0]), full[3]) == (0, "context")


def test_abort_by_name_by_leaving_and_by_close(base):
    async def go():
        engine = create(Config(slots=2), base=base)
        asked = prompts(base, 10, 10, 10, 10)
        jobs = [asyncio.create_task(collect(engine, p, f"r{i}", max_tokens=4000)) for i, p in enumerate(asked[:3])]
        await running(engine, 10)
        engine.abort("r0")
        engine.abort("r2")  # which never ran
        first, third = await jobs[0], await jobs[2]
        left = await collect(engine, asked[3], stop_after=3, max_tokens=4000)
        await engine.close()
        return first, third, left, await jobs[1], engine.stats()

    first, third, left, second, stats = asyncio.run(go())
    assert first[3] == second[3] == third[3] == "aborted"
    assert len(first[0]) > 0
    assert len(third[0]) == 0
    assert len(left[0]) == 3
    assert stats.running == stats.waiting == 0


def test_a_close_that_is_cancelled_says_so(base):
    """Whoever gave it a limit must hear of it."""

    async def go():
        gate = threading.Event()
        with ThreadPoolExecutor(1) as executor:
            engine = create(Config(), base=base, executor=executor)
            executor.submit(gate.wait)  # what the next step waits for
            job = asyncio.create_task(collect(engine, prompts(base, 10)[0], max_tokens=50))
            await asyncio.sleep(0.01)
            try:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await engine.close()
            finally:
                gate.set()
            await engine.close()
            return await job

    assert asyncio.run(go())[3] == "aborted"


def test_a_failure_in_a_step_reaches_every_waiter(base):
    class Broken(ThreadPoolExecutor):
        """Loses its worker after a while, as a dying process does."""

        calls = 0

        def submit(self, call, /, *args):
            self.calls += 1
            if self.calls > 5:
                raise RuntimeError("the worker is gone")
            return super().submit(call, *args)

    async def go():
        engine = create(Config(), base=base, executor=Broken(1))
        jobs = [collect(engine, p, max_tokens=50) for p in prompts(base, 5, 6)]
        found = await asyncio.gather(*jobs, return_exceptions=True)
        with pytest.raises(FaultError, match="engine-lost"):
            await engine.publish({}, 1)
        with pytest.raises(FaultError, match="engine-lost"):
            await collect(engine, prompts(base, 5)[0])
        return found

    assert [error.fault.what for error in asyncio.run(go())] == ["engine-lost"] * 2


def test_publishes_that_do_not_fit_change_nothing(base):
    async def go():
        engine = create(Config(), base=base, adapter=ADAPTER)
        good = adapter_weights(base, 1)
        for weights, version, mode in (({}, 1, "keep"), (good, 0, "keep"), (good, 1, "maybe")):
            with pytest.raises(ConfigError):
                await engine.publish(weights, version, mode)
        assert engine.version == 0
        await engine.publish(good, 1)
        assert engine.version == 1
        await engine.close()

    asyncio.run(go())


def test_scores_are_the_trainers(base):
    ids = prompts(base, 40)[0]

    async def go():
        engine = create(Config(), base=base)
        found = await engine.score(ids, top_k=3)
        await engine.close()
        return found

    logprobs, (best, values) = asyncio.run(go())
    assert logprobs[0] == 0
    assert np.allclose(logprobs[1:], exact(Policy(base), ids), atol=1e-5)
    assert best.shape == values.shape == (39, 3)
    assert (values[:, 0] >= logprobs[1:] - 1e-5).all()


def test_nothing_beyond_the_models_window_is_scored(base):
    async def go():
        engine = create(Config(), base=base)
        with pytest.raises(ConfigError, match="window"):
            await engine.score(prompts(base, base.context + 1)[0])
        await engine.close()

    asyncio.run(go())


def test_damaged_weights_are_not_taken_and_the_engine_goes_on(base):
    async def go():
        engine = create(Config(), base=base, adapter=ADAPTER)
        weights = adapter_weights(base, 1)
        next(iter(weights.values()))[0, 0] = torch.nan
        with pytest.raises(CorruptError, match="weights of version 1 are damaged"):
            await engine.publish(weights, 1)
        assert engine.version == 0
        assert len((await collect(engine, prompts(base, 5)[0], max_tokens=3))[0]) == 3
        await engine.close()

    asyncio.run(go())


@pytest.mark.parametrize("how", [{}, {"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.5}])
def test_log_probs_that_are_not_finite_end_the_engine_with_the_version(base, how):
    async def go():
        engine = create(Config(), base=base, adapter=ADAPTER)
        await engine.publish({n: w * 1e38 for n, w in adapter_weights(base, 1).items()}, 1)  # finite, but too large
        for _ in range(2):
            with pytest.raises(CorruptError, match="not finite: the weights of version 1 are damaged"):
                await collect(engine, prompts(base, 5)[0], max_tokens=3, **how)
        await engine.close()

    asyncio.run(go())
