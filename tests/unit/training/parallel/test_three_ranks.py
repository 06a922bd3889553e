"""Three ranks, sharded: a head that is not the embedding and that a rank may not reach, and fewer rows than ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from temper.models.load import load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy
from temper.training.packing import Row, pack
from temper.training.parallel.sharded import spread
from temper.training.parallel.world import company
from temper.training.trainer import Config, Trainer

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture
def untied(tmp_path) -> str:
    """The tiny model with a head of its own, as a folder."""
    base = load("tiny:seed=1", "float64")
    config = type(base.config)(**{**base.config.to_dict(), "tie_word_embeddings": False})
    config.save_pretrained(tmp_path)
    base.tokenizer.save(str(tmp_path / "tokenizer.json"))
    head = base.tensors["model.embed_tokens.weight"].flip(0).contiguous()
    save_file({**base.tensors, "lm_head.weight": head}, tmp_path / "model.safetensors")
    return str(tmp_path)


def row(length: int, w: str) -> Row:
    streams = {w: np.arange(length) / 100, "returns": np.ones(length), "old_value": np.zeros(length)}
    return Row(name=w, ids=np.arange(length) + 3, streams=streams)


@pytest.mark.parametrize("adapter", [None, LoraConfig(rank=2)], ids=["all weights", "adapter"])
def test_two_steps_are_those_of_one_rank(untied, tmp_path, adapter):
    base = load(untied, "float64")
    steps = [pack([row(9, "w_value")], 100), pack([row(9, "w_ce"), row(30, "w_value"), row(20, "w_ce")], 30)]

    def learnt(place: Callable[[Policy], Policy]) -> tuple[list[float], Trainer]:
        learner = Trainer(place(Policy(base, adapter, trainable=True)), Config(scalar=True))
        return [learner.step(batches)[key] for batches in steps for key in ("loss", "grad_norm")], learner

    expected, one = learnt(lambda policy: policy)
    with company(3, 120):
        found, three = learnt(spread)
        three.save(tmp_path / "three")
    assert found == pytest.approx(expected, rel=1e-10)
    fresh = Trainer(Policy(base, adapter, trainable=True), Config(scalar=True))
    fresh.load(tmp_path / "three")
    for (name, p), q in zip(one.optimizer.parameters.items(), fresh.optimizer.parameters.values(), strict=True):
        assert torch.allclose(p, q, rtol=1e-8, atol=1e-10), name
