"""`temper bench gpu`: speed of training and sampling at a 0.5 to 1 B shape, random weights, on CUDA where there is one.

Training is a LoRA step (forward, backward, update) on `groups` groups of answers to one prompt each, as a token tree
and packed sample by sample, in turns. `train_tokens_per_s` counts every sample's tokens, shared or not; `mfu` the
operations that were done, as `temper bench tree` counts them, over those of a large matrix product of the same dtype on
the same device, measured here (`peak_tflops` replaces it by a data sheet's). Peak memory: what torch allocated in a
step; on the CPU the process's resident maximum.

Sampling fills `slots` with requests of one length through the engine, a LoRA published; its tokens a second are the
engine's own count over the time of its steps. `gap`: sampled log-probs against the trainer's own forward pass.

Weights are random, and so wide that logits spread by about 2: that changes no speed, and the gap is not that of
near-uniform predictions. Not measured: several devices, full fine-tuning, long contexts. `shape=tiny device=cpu
prompt=64 answer=16 micro_tokens=512 slots=8 sampled=16` runs anywhere in seconds.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from temper.core.errors import ConfigError, nearest
from temper.core.protocols import SamplingParams
from temper.core.trace import MicroBatch
from temper.engines.torch import Config, create
from temper.engines.torch.runner import Stats
from temper.models.load import Base, load
from temper.training.invariance import stir
from temper.training.packing import Row, pack
from temper.training.scoring import score
from temper.training.trainer import Trainer

sys.path.insert(0, str(Path(__file__).parent))
from tree import draw, flops, learner

SETTINGS = {
    "shape": "0.5b", "device": "cuda" if torch.cuda.is_available() else "cpu", "dtype": "bfloat16", "rank": 16,
    "prompt": 1024, "answer": 256, "group": 8, "groups": 4, "micro_tokens": 16384,
    "slots": 64, "sampled": 128, "peak_tflops": 0.0, "pairs": 5, "seed": 0,
}  # fmt: skip
SHAPES: dict[str, dict[str, int]] = {  # those of Qwen2.5-0.5B and Llama-3.2-1B, without biases
    "0.5b": {
        "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "vocab_size": 151936,
    },
    "1b": {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 128256,
    },
    "tiny": {
        "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 512,
    },
}  # fmt: skip
PRODUCT = {"cuda": 8192, "cpu": 1024}  # rows and columns of the matrices that measure the peak


def run(settings: dict[str, Any]) -> dict[str, Any]:
    """Measure; gives metrics, their spread, the number of pairs and the settings used."""
    used = SETTINGS | settings
    base = random_base(used)
    peak = used["peak_tflops"] * 1e12 or product_speed(base)
    trainer = learner(base, used["rank"])
    stir(trainer)
    series = training(trainer, used, peak)
    stats, gaps = sampling(trainer, used)
    metrics = {name: statistics.median(values) for name, values in series.items()}
    metrics |= {
        "prefill_tokens_per_s": stats.prompt_computed / stats.prefill_seconds,
        "decode_tokens_per_s": stats.sampled / stats.decode_seconds,
        "gap_mean": float(gaps.mean()),
        "gap_max": float(gaps.max()),
        "peak_gib": memory(used["device"]),
    }
    spread = {name: [min(values), metrics[name], max(values)] for name, values in series.items()}
    name = torch.cuda.get_device_name() if used["device"] == "cuda" else "cpu"
    found = {"device_name": name, "product_tflops": peak / 1e12, "weights": "random", "torch": torch.__version__}
    return {"metrics": metrics, "spread": spread, "pairs": used["pairs"], "settings": used | found}


def random_base(used: dict[str, Any]) -> Base:
    from transformers import AutoModelForCausalLM, LlamaConfig

    if used["shape"] not in SHAPES:
        raise ConfigError(f"no shape is called {used['shape']!r}; {nearest(used['shape'], SHAPES)}")
    shape = SHAPES[used["shape"]]
    more = {"tie_word_embeddings": True, "max_position_embeddings": 32768}
    config = LlamaConfig(**shape, **more, initializer_range=2 / shape["hidden_size"] ** 0.5)
    torch.manual_seed(used["seed"])
    with torch.device(used["device"]):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, used["dtype"]))
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    return Base(f"random {used['shape']}", config, tensors, load("tiny:").tokenizer, (2,))


def training(trainer: Trainer, used: dict[str, Any], peak: float) -> dict[str, list[float]]:
    """Tree and flat steps in turns, the first pair of which warms up."""
    rows: list[Row] = []
    for number in range(used["groups"]):
        drawn = draw(trainer.policy.base, used["prompt"], used["answer"], used["group"], used["seed"] + number)
        rows += [Row(name=f"{number}/{r.name}", ids=r.ids, streams=r.streams, family=str(number)) for r in drawn]
    tokens = sum(len(row.ids) for row in rows)
    ways = [pack(rows, used["micro_tokens"], share=share) for share in (True, False)]
    operations = [flops(trainer.policy, batches) for batches in ways]
    found: dict[str, list[float]] = {}
    for pair in range(used["pairs"] + 1):
        tree, flat = (clock(trainer, batches, used["device"]) for batches in ways)
        values = {
            "train_tokens_per_s": tokens / tree,
            "mfu": operations[0] / tree / peak,
            "mfu_flat": operations[1] / flat / peak,
            "tree_speedup": flat / tree,
        }
        for name, value in values.items() if pair else ():
            found.setdefault(name, []).append(value)
    return found | {"tree_rho_f": [operations[1] / operations[0]]}


def sampling(trainer: Trainer, used: dict[str, Any]) -> tuple[Stats, np.ndarray]:
    """The engine's counters after a full batch, and |log-prob sampled - the trainer's| of every token."""
    policy = trainer.policy
    rng = np.random.default_rng(used["seed"])
    prompts = rng.integers(3, policy.base.config.vocab_size, (used["slots"], used["prompt"])).astype(np.int32)
    engine = create(Config(slots=used["slots"], row_mib=8192), base=policy.base, adapter=policy.adapter)

    async def one(number: int) -> tuple[np.ndarray, np.ndarray]:
        params = SamplingParams(max_tokens=used["sampled"], seed=number)
        chunks = [chunk async for chunk in engine.generate(prompts[number], params)]
        return tuple(np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("ids", "logprobs"))  # type: ignore[return-value]

    async def everything() -> list[tuple[np.ndarray, np.ndarray]]:
        await engine.publish(policy.trainable(), 1)
        found = await asyncio.gather(*(one(number) for number in range(used["slots"])))
        await engine.close()
        return found

    sampled = asyncio.run(everything())
    weight = np.append(np.zeros(used["prompt"]), np.ones(used["sampled"]))
    rows = [
        Row(name=str(n), ids=np.append(prompts[n], ids), streams={"w_ce": weight}) for n, (ids, _) in enumerate(sampled)
    ]
    scored = score(policy, rows, used["micro_tokens"])
    gaps = [
        np.abs(one.logprobs[-used["sampled"] :] - logprobs) for one, (_, logprobs) in zip(scored, sampled, strict=True)
    ]
    return engine.stats(), np.concatenate(gaps)


def product_speed(base: Base) -> float:
    """Operations a second of a large matrix product, the best of five."""
    n = PRODUCT[base.device.type]
    x = torch.randn(n, n, device=base.device).to(next(iter(base.tensors.values())).dtype)
    return 2 * n**3 / min(timed(lambda: x @ x, base.device.type) for _ in range(5))


def clock(trainer: Trainer, batches: list[MicroBatch], device: str) -> float:
    return timed(lambda: trainer.step(batches), device)


def timed(call: Callable[[], Any], device: str) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - began


def memory(device: str) -> float:
    """GiB at the most so far."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
