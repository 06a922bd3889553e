"""`temper check numerics` sees what it is for: equal ways pass in fp64, and a loss that depends on the cut does not."""

from __future__ import annotations

import numpy as np
import pytest

from temper.training.invariance import differences, over_ranks, sample, stir


def test_all_ways_agree_in_fp64(trainer):
    learner = trainer("float64")
    stir(learner)
    found = list(differences(learner, sample(259)))
    assert len(found) == 5
    assert all(d.fine for d in found), found


@pytest.mark.nightly
def test_two_ranks_agree_in_fp64(trainer):
    learner = trainer("float64")
    stir(learner)
    found = list(over_ranks(learner, sample(259)))
    assert len(found) == 2
    assert all(d.fine for d in found), found


def test_a_loss_that_knows_its_micro_batch_is_found(trainer, monkeypatch):
    learner = trainer("float64")
    module, config = learner.losses["pg"]

    class ByBatch:
        """What several trainers did: each micro-batch divided by its own count."""

        streams = module.streams

        @staticmethod
        def loss(logprobs, streams, settings):
            values, diagnostics = module.loss(logprobs, streams, settings)
            return values / len(values), diagnostics

    learner.losses["pg"] = ByBatch, config
    assert not any(d.fine for d in differences(learner, sample(259)) if "two" in d.what or "packed" in d.what)


def test_the_sample_has_forks_and_trained_tokens_among_what_is_shared():
    rows = sample(259)
    assert len({tuple(r.ids[:80].tolist()) for r in rows[2:]}) == 1
    assert all(np.count_nonzero(r.streams["w_pg"]) in (16, 32) for r in rows)
