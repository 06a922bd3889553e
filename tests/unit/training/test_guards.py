"""Alarms ring once for each thing that is wrong, and refused updates end a stage."""

from __future__ import annotations

import pytest

from temper.core.errors import BackendError
from temper.training.guards import BASELINE, Config, Guards

FINE = {
    "skipped": 0.0,
    "grad_norm": 1.0,
    "entropy": 2.0,
    "answer_tokens": 10.0,
    "logprob_gap": 1e-4,
    "kl_behaviour": 0.01,
}


@pytest.fixture
def guards() -> Guards:
    found = Guards(Config())
    assert not any(found.observe(FINE) for _ in range(BASELINE))
    return found


@pytest.mark.parametrize(
    ("metric", "value", "words"),
    [
        ("skipped", 1.0, "update refused"),
        ("logprob_gap", 0.2, "engine-trainer gap"),
        ("kl_behaviour", 1.0, "policy drift"),
        ("kl_behaviour", float("nan"), "policy drift"),
        ("entropy", 0.1, "entropy collapse"),
        ("answer_tokens", 31.0, "length explosion"),
    ],
)
def test_an_alarm_rings_once_and_again_when_it_comes_back(guards, metric, value, words):
    rings = [guards.observe(FINE | {metric: v}) for v in (value, value, FINE[metric], value)]
    assert [len(r) for r in rings] == [1, 0, 0, 1]
    assert rings[0][0].startswith(words)


def test_too_many_refused_updates_end_the_stage(guards):
    refused = FINE | {"skipped": 1.0, "grad_norm": float("nan")}
    for _ in range(9):
        guards.observe(refused)
    with pytest.raises(BackendError, match="10 updates in a row were refused, the last with a gradient norm of nan"):
        guards.observe(refused)
