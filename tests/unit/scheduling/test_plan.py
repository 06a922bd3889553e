"""The plan's formulas against published figures, each with its source, and the shipped examples.

DeepSeek: "Insights into DeepSeek-V3", arXiv 2505.09343: table 1 (cache), table 2 (training), section 2.3.2 (a decode
step's exchange of experts); and the figures of its online service (DeepSeek-V3/R1 inference system overview, 2025).
"""

import math
import random

import pytest
from msgspec.structs import replace

from temper.core.errors import ConfigError, MissingError
from temper.scheduling import pacing
from temper.scheduling.plan import (
    PLANS,
    Assumed,
    Machine,
    Model,
    Question,
    answer,
    ask,
    decode_step,
    publish_seconds,
    report,
    train_step,
)
from temper.scheduling.scene import Load

DEEPSEEK = Model(
    parameters=671e9, active=37e9, layers=61, width=7168, heads=128, head=160, kv=576, experts=256, top=8, bytes=1
)  # fmt: skip
LLAMA_405B = Model(parameters=405e9, layers=126, width=16384, heads=128, kv=2048)
LLAMA_8B = Model(parameters=8.03e9, layers=32, width=4096, heads=32, kv=2048, vocabulary=128256, lora=16)
LLAMA2_7B = Model(parameters=6.738e9, layers=32, width=4096, heads=32, kv=8192, vocabulary=32000, lora=16)
H800 = Machine(gpus=144, replica=144, flops=1979e12, bandwidth=3.35e12, memory=80e9)


def asked(model: Model, machine: Machine = H800, **more) -> Question:
    return Question(model=model, machine=machine, load=Load(), **more)


@pytest.mark.parametrize(
    ("model", "bytes_"),
    [(DEEPSEEK, 70_272), (LLAMA_405B, 516_096), (Model(parameters=72e9, layers=80, width=8192, heads=64), 327_680)],
    ids=["deepseek-v3", "llama-3.1-405b", "qwen-2.5-72b"],
)
def test_bytes_of_a_token_in_the_cache_are_the_published_ones(model, bytes_):
    assert model.token_bytes == bytes_


@pytest.mark.parametrize(("model", "flops"), [(DEEPSEEK, 250e9), (LLAMA_405B, 2448e9)], ids=["deepseek-v3", "llama"])
def test_training_of_a_token_at_4096_costs_the_published_operations(model, flops):
    assert 3 * model.forward(2048) == pytest.approx(flops, rel=0.02)  # a token attends to half of 4096 by the mean


@pytest.mark.parametrize(("model", "trained"), [(LLAMA_8B, 41_943_040), (LLAMA2_7B, 39_976_960)], ids=["8B", "7B"])
def test_adapters_on_every_matrix_are_as_large_as_peft_prints(model, trained):
    """ "trainable params" of rank 16 on q, k, v, o, gate, up and down, as PEFT and Unsloth print them."""
    assert model.trained == pytest.approx(trained, rel=0.003)


def test_exchange_of_experts_takes_the_published_time_a_token():
    """Two micro-batches of 32 tokens a device, 9 experts, 7K wide, 61 layers at 50 GB/s: 14.76 ms."""
    model = replace(DEEPSEEK, width=7000, top=9, parameters=1.0, active=1.0, heads=0, kv=0)
    question = asked(model, assumed=Assumed(latency=0.0))
    assert decode_step(question, 64 * 144, 0) == pytest.approx(14.76e-3, rel=1e-3)


def test_a_decode_step_is_near_that_of_a_published_service():
    """14.8k tokens/s a node of 8, units of 144 H800, 20 to 22 tokens/s a request, 4,989 tokens of cache each."""
    requests = 14.8e3 * 18 / 21
    assert 1 / decode_step(asked(DEEPSEEK), requests, 4989) == pytest.approx(21, rel=0.25)


def test_weights_that_a_step_touches_are_those_of_the_experts_that_were_drawn():
    rng = random.Random(0)
    drawn = [len({e for _ in range(20) for e in rng.sample(range(256), 8)}) for _ in range(300)]
    experts = (DEEPSEEK.parameters - DEEPSEEK.used) / (1 - 8 / 256)
    expected = DEEPSEEK.parameters - experts + experts * sum(drawn) / len(drawn) / 256
    assert DEEPSEEK.touched(20) == pytest.approx(expected, rel=0.01)
    assert DEEPSEEK.touched(1) == pytest.approx(DEEPSEEK.used)
    assert LLAMA_405B.touched(1) == LLAMA_405B.parameters


def test_training_405B_takes_the_published_operations_and_utilisation():
    """15.6T tokens are 3.8e25 operations; 16,384 H100 did 400 TFLOP/s each (arXiv 2407.21783, section 3.2, table 4)."""
    machine = Machine(gpus=16384, flops=989e12, bandwidth=3.35e12, memory=80e9)
    question = asked(LLAMA_405B, machine, assumed=Assumed(train=400 / 989))
    assert train_step(question, 15.6e12, 0, 16384) == pytest.approx(3.8e25 / 16384 / 400e12, rel=0.01)


def test_a_pipeline_of_few_micro_batches_is_mostly_bubble():
    """(m + p - 1) / m of GPipe: 4 micro-batches over 4 stages take 1.75 times as long."""
    machine = replace(H800, gpus=4, pipeline=4)
    flat, deep = (asked(LLAMA_405B, m, assumed=Assumed(micro=1000)) for m in (replace(machine, pipeline=1), machine))
    assert train_step(deep, 4000, 0, 4) / train_step(flat, 4000, 0, 4) == pytest.approx(1.75)


@pytest.mark.parametrize(
    ("parameters", "method", "seconds", "within"),
    [(235e9, "full", 23.7, 0.02), (7e9, "delta", 4.4, 0.15), (32e9, "delta", 6.2, 0.2), (235e9, "delta", 13.2, 0.1)],
)
def test_a_publish_takes_about_what_was_published(parameters, method, seconds, within):
    """verl, docs/advance: checkpoint engine over NCCL, and delta weight sync; bf16, 400 Gb/s."""
    question = asked(replace(LLAMA_405B, parameters=parameters))
    assert publish_seconds(question)[method] == pytest.approx(seconds, rel=within)


def test_the_trainer_gets_at_least_the_memory_that_its_state_needs():
    """ZeRO, section 3.1: 7.5B parameters have 120 GB of state: three GPUs of 48 GB, of which 0.9 are usable."""
    machine = Machine(gpus=8, flops=1e15, bandwidth=3e12, memory=48e9)
    model = Model(parameters=7.5e9, layers=32, width=4096, heads=32)
    load = Load(median=20000, between=0.1, within=0.1, cap=30000)  # decode is the bottleneck: the trainer gets no more
    config = pacing.Config(batch=8, group=4, eta=1)
    found = answer(Question(model=model, machine=machine, load=load, pacing=config))
    assert found.gpus["gradient"] == 3
    assert sum(found.gpus.values()) == 8


def test_the_laptop_takes_about_what_the_quickstart_was_measured_to():
    """45 steps of 64 rollouts in 247 s of a quiet machine with two cores."""
    assert answer(ask("laptop")).outcome.pace == pytest.approx(64 * 247 / 2120, rel=0.3)


def test_more_machines_and_more_age_never_slow_a_step():
    small = ["pacing.batch=128", "load.turns=1", "load.reads=0"]
    base, wide = (answer(ask("box", [*small, f"machine.gpus={n}"])) for n in (8, 16))
    assert wide.outcome.pace < base.outcome.pace
    strict = answer(ask("box", [*small, "pacing.eta=0"]))
    assert strict.outcome.pace > base.outcome.pace
    assert (strict.outcome.age_max, base.outcome.age_max <= 2) == (0, True)


@pytest.mark.parametrize("name", sorted(path.stem for path in PLANS.glob("*.toml")))
def test_shipped_examples_answer_with_every_assumption_and_its_source(name):
    question = ask(name, ["pacing.batch=64", "load.turns=1"])
    found = answer(question)
    assert sum(found.gpus.values()) <= question.machine.gpus or found.cluster.shared
    assert found.outcome.age_max <= question.pacing.eta
    assert found.outcome.trained == 64 * 10
    assert all(math.isfinite(v) and v > 0 for v in (*found.stages.values(), *found.sync.values()))
    lines = report(question, found)
    for part in ("model", "machine", "load", "pacing", "admission", "assumed"):
        for field in getattr(question, part).__struct_fields__:
            said = [line for line in lines if line.startswith(f"  {part}.{field} = ")]
            assert len(said) == 1, f"{part}.{field} is not said"
            assert said[0].endswith(")")


def test_a_source_that_a_file_gives_is_printed_and_a_default_says_where_it_is_from():
    question = ask("box", ["pacing.batch=32"])
    text = "\n".join(report(question, answer(question)))
    assert "machine.memory = 8e+10 (the same)" in text
    assert "assumed.sync = 0.4 (235B parameters" in text
    assert "assumed.busy = 0.8 (assumed)" in text
    assert "pacing.batch = 32 (given)" in text


def test_a_model_that_fits_nowhere_is_refused_with_what_it_needs():
    with pytest.raises(ConfigError, match=r"give machine\.replica more"):
        answer(ask("box", ["model.parameters=70e9"]))
    with pytest.raises(ConfigError, match="the trainer needs 1024 GPUs"):
        answer(ask("trillions", ["machine.gpus=512"]))
    with pytest.raises(MissingError, match="laptop"):
        ask("nowhere")
    with pytest.raises(ConfigError, match="publish must be one of"):
        answer(ask("laptop", ["publish=post"]))


@pytest.mark.parametrize(
    "setting", ["load.cap=nan", "load.cap=0", "machine.flops=inf", "machine.gpus=0", "assumed.train=nan"]
)
def test_amounts_that_are_no_numbers_are_refused(setting):
    name, value = setting.split("=")
    with pytest.raises(ConfigError, match=rf"plan: {name}: Expected .* [<>]=? .*, got {value}"):
        ask("box", [setting])
