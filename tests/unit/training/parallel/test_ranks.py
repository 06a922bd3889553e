"""Two ranks are one: loss, gradients, checkpoints and scores.

Rank 0 is this process, rank 1 a child, gloo between them; the expected values are those of one rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file

from temper.core.errors import ConfigError, RefusedError
from temper.core.trace import MicroBatch
from temper.models.attention import Packed
from temper.models.lora import LoraConfig
from temper.models.policy import Policy
from temper.training.packing import Row, pack
from temper.training.parallel.sharded import ShardedPolicy, spread
from temper.training.parallel.world import World, company
from temper.training.scoring import lent, score, snapshot
from temper.training.trainer import Config, Trainer

KINDS = {
    "adapter": ("float64", False, Config()),
    "all weights": ("float64", True, Config()),
    "adapter in fp32": ("float32", False, Config()),
    "a value head": ("float64", False, Config(scalar=True, lr=1e-2)),
    "whole sequences": ("float64", False, Config(losses={"pg": {"kind": "gspo"}})),
}
LIMIT = {"float64": 1e-10, "float32": 1e-6}
pytestmark = pytest.mark.timeout(600)  # a busy machine is no defect

SHARDED = pytest.mark.parametrize("sharded", [False, True], ids=["copies", "sharded"])


@pytest.fixture(scope="module")
def alone(bases) -> dict[str, Trainer]:
    """Trainers that were made before there were ranks."""
    found = {}
    for kind, (dtype, full, config) in KINDS.items():
        policy = Policy(bases[dtype], None if full else LoraConfig(rank=4), trainable=True)
        rng = np.random.default_rng(0)
        noise = {k: p.new_tensor(rng.normal(0, 0.02, p.shape)) for k, p in policy.trainable().items() if "lora_B" in k}
        policy.load_trainable({k: noise.get(k, p) for k, p in policy.trainable().items()})
        found[kind] = Trainer(policy, config)
    return found


@pytest.fixture(scope="module")
def ranks(alone) -> Iterator[World]:
    with company(2, 120) as world:
        yield world


def beside(one: Trainer, sharded: bool, config: Config | None = None) -> Trainer:
    """A trainer like `one` over two ranks, with its weights, and with its settings where no other are given."""
    policy = Policy(one.policy.base, one.policy.adapter, trainable=True)
    policy.load_trainable(one.policy.trainable())
    return Trainer(spread(policy) if sharded else policy, config or one.config)


def conversations(seed: int, count: int, w: str = "w_ce") -> list[Row]:
    """Rows of two families that fork at random places, trained at random places: shared turns among them."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for number in range(count):
        family = "ab"[int(rng.integers(2))]
        others = [r.ids for r in rows if r.family == family]
        ids = rng.integers(3, 259, rng.integers(4, 40))
        if others:
            other = others[int(rng.integers(len(others)))][:30]
            ids = np.append(other[: rng.integers(1, len(other))], ids[: rng.integers(2, 10)])
        weight = rng.random(len(ids)) * (rng.random(len(ids)) < 0.5) / 100
        weight[-1] = 0.01
        weight[0] = 0
        more = {"advantage": rng.normal(size=len(ids)), "behaviour": np.full(len(ids), -5.5)}
        more |= {"returns": rng.normal(size=len(ids)), "old_value": np.zeros(len(ids)), "version": np.zeros(len(ids))}
        rows.append(Row(name=str(number), ids=ids, streams={w: weight} | more, family=family))
    return rows


def uneven(seed: int = 78) -> list[MicroBatch]:
    """Micro-batches of any size, and trees that go on below, two deep; an odd number of them."""
    batches = pack(conversations(seed, 16), 42)
    assert len(batches) % 2
    assert any(under.below for batch in batches for under in batch.below)
    return batches


def difference(found: Trainer, one: Trainer, batches: Sequence[MicroBatch]) -> float:
    """Of loss and gradient, relative to the largest gradient; sharded gradients are rank 0's rows."""
    losses = [t.accumulate(batches)["loss"] for t in (found, one)]
    expected = {k: p.grad for k, p in one.optimizer.parameters.items()}
    largest = max(float(g.abs().max()) for g in expected.values() if g is not None)
    apart = [abs(losses[0] - losses[1]) / abs(losses[1])]
    for name, p in found.optimizer.parameters.items():
        assert (p.grad is None) == (expected[name] is None), name
        if p.grad is not None and p.grad.numel():
            apart.append(float((p.grad - found.team.cut(f".{name}", expected[name])).abs().max()) / largest)
    return max(apart)


@SHARDED
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient_are_those_of_one_rank(alone, ranks, kind, sharded):
    one = alone[kind]
    batches = uneven()
    if kind == "a value head":
        batches = pack([r for i in (2, 3) for r in conversations(i, 6, ("w_value", "w_pg")[i - 2])], 64)
    if kind == "whole sequences":  # beside a tree that goes on below, which they must not
        batches = pack(conversations(3, 5, "w_pg"), 400) + batches
    assert difference(beside(one, sharded), one, batches) <= LIMIT[KINDS[kind][0]]


@SHARDED
@pytest.mark.parametrize("kind", ["adapter", "all weights"])
def test_gradient_checkpointing_over_ranks_gives_the_gradient_of_one_rank_without(alone, ranks, kind, sharded):
    one = alone[kind]
    two = beside(one, sharded, replace(one.config, gradient_checkpointing=True))
    assert difference(two, one, uneven()) <= 1e-10


@SHARDED
def test_a_step_of_one_small_batch_and_one_of_none(alone, ranks, sharded):
    one = alone["adapter"]
    two = beside(one, sharded)
    assert difference(two, one, pack(conversations(4, 1), 64)) <= 1e-10
    before = {k: p.clone() for k, p in two.policy.trainable().items()}
    metrics = two.step([])
    assert metrics["loss"] == metrics["grad_norm"] == 0
    assert all(torch.equal(before[k], p) for k, p in two.policy.trainable().items())


def moments(folder: Path) -> dict[str, torch.Tensor]:
    """Of all ranks, read without the trainer."""
    parts = [load_file(file) for file in sorted(folder.glob("optimizer*.safetensors"))]
    return {name: torch.cat([p[name] for p in parts if name in p]) for name in parts[0]}


@pytest.mark.parametrize(("kind", "sharded"), [("all weights", True), ("a value head", True), ("adapter", False)])
def test_a_checkpoint_of_two_ranks_is_read_by_one_and_by_two(alone, ranks, bases, tmp_path, kind, sharded):
    """Whoever goes on from it takes the same step; every rank's moments are those of one rank."""
    one = alone[kind]
    one.save(tmp_path / "start")
    two = beside(one, sharded)
    steps = [pack(conversations(seed, 6, w), 64) for seed, w in ((5, "w_ce"), (6, "w_value" if two.scalar else "w_ce"))]
    for learner in (one, two):
        learner.load(tmp_path / "start")
        found = [learner.step(batches) for batches in steps]
        learner.save(tmp_path / ("one" if learner is one else "two"))
    assert len(list((tmp_path / "two").glob("optimizer*"))) == (2 if sharded else 1)
    expected = moments(tmp_path / "one")
    for name, moment in moments(tmp_path / "two").items():
        assert torch.allclose(moment, expected[name], rtol=1e-8, atol=1e-14), name
    one.load(tmp_path / "two")
    two.load(tmp_path / "start")
    two.load(tmp_path / "one")
    again = [learner.step(steps[0]) for learner in (one, two)]
    assert again[0]["loss"] == pytest.approx(again[1]["loss"], rel=1e-10)
    assert again[0]["grad_norm"] == pytest.approx(again[1]["grad_norm"], rel=1e-8)
    assert again[0]["loss"] != found[0]["loss"]
    for (name, p), q in zip(one.policy.trainable().items(), two.policy.trainable().values(), strict=True):
        assert torch.allclose(p, q, rtol=1e-8, atol=1e-10), name
    one.load(tmp_path / "start")


def test_a_sharded_policy_is_scored_lent_and_differentiated_as_any(alone, ranks):
    one = alone["adapter"]
    two = beside(one, sharded=True)
    rows = conversations(7, 6)
    other = {k: p.detach() * 2 for k, p in one.policy.trainable().items()}
    expected = score(one.policy, rows, 64)
    with lent(one.policy, other):
        theirs = score(one.policy, rows, 64)
    with lent(two.policy, other):
        found = score(two.policy, rows, 64)
    for mine, scored in ((score(two.policy, rows, 64), expected), (found, theirs)):
        assert all(np.array_equal(a.logprobs, b.logprobs) for a, b in zip(mine, scored, strict=True))
    assert all(torch.equal(p, snapshot(one.policy)[k]) for k, p in snapshot(two.policy).items())
    with pytest.raises(RefusedError, match=r"inside a trainer's step"):
        two.policy.hidden(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), Packed([1]))
    with pytest.raises(ConfigError, match="1 names differ, such as more"):
        two.policy.load_trainable({**other, "more": torch.zeros(1)})


def test_a_rank_holds_half_and_rank_0_alone_keeps_the_base(alone, ranks):
    two = beside(alone["all weights"], sharded=True).policy
    assert isinstance(two, ShardedPolicy)
    whole = sum(p.numel() for p in alone["all weights"].policy.trainable().values())
    assert sum(p.numel() for p in two.rows.values()) == pytest.approx(whole / 2, rel=0.01)
    assert {"model.embed_tokens.weight", "model.norm.weight"} <= two.rows.keys()


def fuzzed(alone: dict[str, Trainer], steps: int, seed: int) -> None:
    """Steps of 0 to 9 rows at any cap, over both kinds of ranks in turn, against one rank."""
    rng = np.random.default_rng(seed)
    one = alone["adapter"]
    twos = [beside(one, sharded) for sharded in (False, True)]
    for number in range(steps):
        rows = conversations(int(rng.integers(1 << 30)), int(rng.integers(0, 10)))
        batches = pack(rows, int(rng.integers(42, 200)), ranks=int(rng.integers(1, 3)))
        if batches:
            assert difference(twos[number % 2], one, batches) <= 1e-10
        else:
            assert twos[number % 2].accumulate([])["loss"] == 0


def test_fifty_fuzzed_steps(alone, ranks):
    fuzzed(alone, 50, seed=0)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_ten_thousand_fuzzed_steps(alone, ranks):
    fuzzed(alone, 10_000, seed=1)
