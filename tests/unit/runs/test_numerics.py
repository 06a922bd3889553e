"""`temper check numerics` through the engine: what agrees passes, and weights that were published wrong are found."""

from __future__ import annotations

import pytest

from temper.models.load import load
from temper.models.lora import LoraConfig
from temper.models.policy import Policy
from temper.runs.numerics import through_engine
from temper.training.invariance import sample, stir
from temper.training.trainer import Config, Trainer


@pytest.fixture
def learner() -> Trainer:
    found = Trainer(Policy(load("tiny:", "float64"), LoraConfig(), trainable=True), Config())
    stir(found)
    return found


def test_engine_and_trainer_agree_and_so_do_synchronous_and_asynchronous_at_a_learning_rate_of_0(learner):
    found = list(through_engine(learner, sample(259)))
    assert [d.what for d in found] == ["log-probs of engine and trainer", "asynchronous, learning rate 0"]
    assert all(d.fine for d in found), found
    assert learner.version == 1 + 2 * 4, "each of four answers was sampled by three versions"


def test_weights_that_change_while_an_answer_is_sampled_are_found(learner, monkeypatch):
    right, calls = learner.policy.trainable, []

    def published():
        calls.append(1)
        return {name: p * (1 if len(calls) == 1 else 1.5) for name, p in right().items()}

    monkeypatch.setattr(learner.policy, "trainable", published)
    engine, asynchronous = through_engine(learner, sample(259))
    assert engine.fine
    assert not asynchronous.fine
