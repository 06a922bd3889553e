"""`temper bench engine`: our torch engine against transformers' `generate` and `generate_batch`, and against its bound.

One process, the same threads, model, dtype, prompts and forced lengths for all: EOS is off and request i ends after
its drawn number of tokens. They take turns, `pairs` times; a ratio is the median of the pairs' ratios. Speed counts
wanted tokens only, so `generate`, which runs a batch to its longest member, pays for what it throws away: that is how
it works. `generate_batch` is driven through its manager, so that it too stops each request at its own length.

`share_of_step_time_bound`: the time of an ideal engine over ours. The ideal one refills a slot the moment it is free
and spends on a step of n decoding requests exactly what the bare forward pass and LM head of n rows take (median,
measured right after each of our runs, over caches of typical length), on prompts what a full prefill chunk takes a
token, and on sampling, scheduling, copying caches and asyncio nothing.

`logprob_gap_max`: at least `gap_tokens` sampled over publishes of a LoRA adapter in mid-generation (`recompute`), each
log-prob against the trainer's forward pass with the weights of that token's version.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from temper.core.protocols import SamplingParams
from temper.engines.torch import Config, create
from temper.engines.torch.engine import TorchEngine
from temper.engines.torch.rows import Rows, Shape, Step
from temper.engines.torch.scheduler import Request
from temper.models.attention import Packed
from temper.models.load import DEFAULT, Base, load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy

SETTINGS = {
    "model": DEFAULT, "requests": 128, "slots": 64, "prompt_tokens": 40, "median": 32, "sigma": 1.0, "cap": 256,
    "seed": 0, "dtype": "float32", "pairs": 5, "gap_tokens": 10_000,
}  # fmt: skip
PREFILL = 512  # tokens a step, for us and for `generate_batch`
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)  # batch sizes whose step time is measured; between them it is interpolated


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure; gives metrics, their spread, the number of pairs and the settings used."""
    used = SETTINGS | settings
    base = load(used["model"], used["dtype"])
    work = draw(used, base.config.vocab_size)
    peer = transformers_model(base)
    engine = create(Config(slots=used["slots"], prefill_tokens=PREFILL), base=base)
    few = [(prompt, 2) for prompt, _ in work[:4]]
    ours(engine, few)  # warm-up, like the next two
    generate(peer, few, used["slots"])
    generate_batch(peer, few, used["slots"])
    found: dict[str, list[float]] = {"vs_generate": [], "vs_generate_batch": [], "share_of_step_time_bound": []}
    for _ in range(used["pairs"]):
        mine = clock(lambda: ours(engine, work))
        found["share_of_step_time_bound"].append(bound(base, work, used["slots"]) / mine)
        found["vs_generate"].append(clock(lambda: generate(peer, work, used["slots"])) / mine)
        found["vs_generate_batch"].append(clock(lambda: generate_batch(peer, work, used["slots"])) / mine)
    asyncio.run(engine.close())
    metrics = {name: statistics.median(values) for name, values in found.items()}
    spread = {name: [min(values), metrics[name], max(values)] for name, values in found.items()}
    metrics["logprob_gap_max"], metrics["logprob_gap_tokens"] = logprob_gap(base, used)
    return {"metrics": metrics, "spread": spread, "pairs": used["pairs"], "settings": used}


def draw(settings: dict[str, Any], vocabulary: int) -> list[tuple[np.ndarray, int]]:
    """Random prompts, each with its forced output length: log-normal, rounded, in [1, cap]."""
    rng = np.random.default_rng(settings["seed"])
    lengths = rng.lognormal(np.log(settings["median"]), settings["sigma"], settings["requests"])
    lengths = np.clip(np.rint(lengths), 1, settings["cap"]).astype(int)
    prompts = rng.integers(3, vocabulary, (settings["requests"], settings["prompt_tokens"])).astype(np.int32)
    return [(prompt, int(n)) for prompt, n in zip(prompts, lengths, strict=True)]


def clock(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


# --- the three -------------------------------------------------------------------------------------------------------


def ours(engine: TorchEngine, work: list[tuple[np.ndarray, int]]) -> None:
    """All requests at once; the publish forgets the prefixes of the last time."""

    async def one(prompt: np.ndarray, n: int, seed: int) -> int:
        params = SamplingParams(max_tokens=n, seed=seed)
        return sum([len(chunk.ids) async for chunk in engine.generate(prompt, params)])

    async def all_of_them() -> list[int]:
        await engine.publish({}, engine.version + 1)
        return await asyncio.gather(*(one(prompt, n, i) for i, (prompt, n) in enumerate(work)))

    assert asyncio.run(all_of_them()) == [n for _, n in work]


def transformers_model(base: Base) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(
        base.config, attn_implementation="sdpa", dtype=next(iter(base.tensors.values())).dtype
    )
    model.load_state_dict(base.tensors, strict=False, assign=True)
    model.tie_weights()
    return model.eval()


def sampling_config(n: int) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(max_new_tokens=n, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0)


def generate(model: Any, work: list[tuple[np.ndarray, int]], slots: int) -> None:
    for at in range(0, len(work), slots):
        batch = work[at : at + slots]
        ids = torch.from_numpy(np.stack([prompt for prompt, _ in batch]).astype(np.int64))
        longest = max(n for _, n in batch)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=sampling_config(longest))
        assert out.shape[1] == ids.shape[1] + longest


def generate_batch(model: Any, work: list[tuple[np.ndarray, int]], slots: int) -> None:
    from transformers import ContinuousBatchingConfig

    batching = ContinuousBatchingConfig(
        block_size=64,
        num_blocks=slots * 6,
        max_batch_tokens=PREFILL,
        max_requests_per_batch=slots,
        allow_block_sharing=False,
    )
    manager = model.continuous_batching_context_manager(
        generation_config=sampling_config(max(n for _, n in work)), continuous_batching_config=batching, block=True
    )
    with manager as running:
        for prompt, n in work:
            running.add_request(prompt.tolist(), max_new_tokens=n, eos_token_id=-1)
        left = len(work)
        while left:
            result = running.get_result(timeout=5)
            assert result is not None or running.is_running(), "generate_batch stopped early"
            left -= result is not None and result.is_finished()


# --- the bound --------------------------------------------------------------------------------------------------------


def bound(base: Base, work: list[tuple[np.ndarray, int]], slots: int) -> float:
    """Seconds of the ideal engine described above, with step times measured now."""
    policy = Policy(base)
    sizes = [n for n in SIZES if n < slots] + [slots]
    context = len(work[0][0]) + int(np.mean([n for _, n in work]))
    times = [step_time(policy, [context] * n, 0) for n in sizes]
    seconds = len(work) * len(work[0][0]) * step_time(policy, [], PREFILL) / PREFILL
    waiting, running = [n for _, n in work], []
    while waiting or running:
        running, waiting = running + waiting[: slots - len(running)], waiting[slots - len(running) :]
        seconds += float(np.interp(len(running), sizes, times))
        running = [n - 1 for n in running if n > 1]
    return seconds


@torch.inference_mode()
def step_time(policy: Policy, contexts: list[int], prefill: int) -> float:
    """Median seconds of a bare forward pass and LM head: decoding rows with these contexts, or one prefill chunk."""
    rows, rng = (
        Rows(Shape(policy.base.config, policy.head.dtype, policy.base.device), 64, 1 << 40),
        np.random.default_rng(0),
    )
    chunks = []
    for length in contexts or [prefill]:
        ids = rng.integers(3, policy.head.shape[0], length).astype(np.int32)
        request = Request("", ids, SamplingParams(), policy.base.context)
        if contexts:
            request.computed = length - 1
            rows.shelve(request)
        else:
            rows.stage(request)
            chunks.append((request, length))
    layout = Step(rows, chunks)
    ids = np.concatenate([r.tokens[-1:] for r in layout.decode] + [r.tokens for r, _ in chunks]).astype(np.int64)
    at = np.array([n - 1 for n in contexts] or range(prefill), np.int64)

    def forward() -> None:
        hidden = policy.hidden(torch.from_numpy(ids), torch.from_numpy(at), layout)
        hidden[: len(contexts) or 1] @ policy.head.T

    forward()
    return statistics.median(clock(forward) for _ in range(5))


# --- log-probs --------------------------------------------------------------------------------------------------------


def logprob_gap(base: Base, settings: dict[str, Any]) -> tuple[float, int]:
    """The largest |engine - trainer| log-prob, and how many sampled tokens were compared."""
    mean = settings["median"] * np.exp(settings["sigma"] ** 2 / 2)
    work = draw(settings | {"requests": int(1.6 * settings["gap_tokens"] / mean)}, base.config.vocab_size)
    adapter = LoraConfig(rank=8)
    versions = [adapter_weights(base, adapter, version) for version in range(5)]
    found = asyncio.run(_sampled(base, adapter, versions, work, settings["slots"]))
    policy, worst, compared = Policy(base, adapter), 0.0, 0
    for version, weights in enumerate(versions):
        policy.load_trainable(weights)
        for prompt, ids, logprobs, made in found:
            if (mine := made == version).any():
                exact = trainer_logprobs(policy, np.concatenate([prompt, ids]))[len(prompt) - 1 :]
                worst = max(worst, float(np.abs(exact - logprobs)[mine].max()))
                compared += int(mine.sum())
    return worst, compared


async def _sampled(base: Base, adapter: LoraConfig, versions: list[Any], work: list[Any], slots: int) -> list[Any]:
    engine = create(Config(slots=slots), base=base, adapter=adapter)

    async def one(prompt: np.ndarray, n: int, seed: int) -> tuple[np.ndarray, ...]:
        chunks = [c async for c in engine.generate(prompt, SamplingParams(max_tokens=n, seed=seed))]
        return prompt, *(np.concatenate([getattr(c, k) for c in chunks]) for k in ("ids", "logprobs", "versions"))

    jobs = [asyncio.create_task(one(prompt, n, i)) for i, (prompt, n) in enumerate(work)]
    total = sum(n for _, n in work)
    for version in range(1, len(versions)):
        while engine.stats().sampled < total * version / len(versions):
            await asyncio.sleep(0.01)
        await engine.publish(versions[version], version)
    found = await asyncio.gather(*jobs)
    await engine.close()
    return found


def adapter_weights(base: Base, adapter: LoraConfig, version: int) -> dict[str, torch.Tensor]:
    """A fresh adapter for version 0; later ones move the policy a good deal more than a training step does."""
    generator = torch.Generator().manual_seed(version)
    start = Policy(base, adapter).trainable()
    noise = 0.0 if version == 0 else 0.01
    return {name: p.detach() + noise * torch.randn(p.shape, generator=generator) for name, p in start.items()}


@torch.no_grad()
def trainer_logprobs(policy: Policy, ids: np.ndarray) -> np.ndarray:
    tokens = torch.from_numpy(ids.astype(np.int64))
    logits = policy.hidden(tokens, torch.arange(len(ids)), Packed([len(ids)])) @ policy.head.T
    return logits[:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0].numpy()
