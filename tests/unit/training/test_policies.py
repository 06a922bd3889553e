"""Two policies trained over one frozen base: each learns what it learns alone, and the base is there once."""

import numpy as np
import pytest
import torch

from temper.models import lora
from temper.models.load import Base, load
from temper.models.lora import LoraConfig
from temper.models.policy import Policies, Policy
from temper.training.invariance import sample, stir
from temper.training.packing import pack
from temper.training.trainer import Config, Trainer

SHAPES = {"a": LoraConfig(rank=2, targets=("q_proj",)), "b": LoraConfig(rank=4, targets=("up_proj", "v_proj"))}
STEPS = 3


@pytest.fixture(scope="module")
def base() -> Base:
    return load("tiny:", dtype="float64")


def trainer(base: Base, name: str) -> Trainer:
    made = Trainer(Policy(base, SHAPES[name], trainable=True, seed=len(name)), Config(lr=1e-3))
    stir(made)
    return made


def batches(name: str, step: int):
    return pack(sample(250, seed=1000 * ord(name) + step), 512)


def weights(made: Trainer) -> dict[str, torch.Tensor]:
    return {key: p.detach().clone() for key, p in made.policy.trainable().items()}


def test_trainers_in_turns_learn_what_each_learns_alone_and_never_touch_the_base(base, tmp_path):
    frozen = {key: tensor.clone() for key, tensor in base.tensors.items()}
    both = {name: trainer(base, name) for name in SHAPES}
    start = {name: weights(made) for name, made in both.items()}
    losses = {name: [] for name in SHAPES}
    for step in range(STEPS):
        for name, made in both.items():
            losses[name].append(made.step(batches(name, step))["loss"])
    for name, made in both.items():
        single = trainer(base, name)
        assert losses[name] == [single.step(batches(name, step))["loss"] for step in range(STEPS)]
        alone = weights(single)
        assert all(torch.equal(tensor, alone[key]) for key, tensor in weights(made).items())
        assert any(not torch.equal(tensor, start[name][key]) for key, tensor in alone.items())
        made.save(tmp_path / name)
        config, saved = lora.load(tmp_path / name)
        assert config == SHAPES[name]
        assert all(torch.equal(tensor, alone[key]) for key, tensor in saved.items())
    assert all(torch.equal(tensor, frozen[key]) for key, tensor in base.tensors.items())


def test_memory_holds_the_base_once_beside_what_each_trainer_owns(base):
    trainers = [trainer(base, name) for name in SHAPES]
    served = Policies(Policy(base))
    for name, made in zip(SHAPES, trainers, strict=True):
        served.add(name, made.policy)  # the very parameters that are trained
    tensors = [p for made in trainers for p in made.policy.body.parameters()]
    tensors += [t for made in trainers for t in made.optimizer.state().values()]
    held = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    once = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in base.tensors.values()}
    own = sum(3 * p.nbytes for made in trainers for p in made.policy.trainable().values())  # and AdamW's two moments
    assert set(once) <= set(held)
    assert sum(held.values()) == sum(once.values()) + own
    assert np.isclose(own / sum(once.values()), 0.05, atol=0.05)
