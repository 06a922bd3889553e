"""Deterministic runs: killed at random moments, they end in the same bits as one that nobody touched."""

import random

import pytest
from plugins import drive

from temper.evaluation.outcome import Outcome
from temper.runs.stages.rl.records import Dropped
from temper.scheduling.placement import worker_of
from temper.store.run import RunDirectory

RECIPE = f"""
name = "tiny"
deterministic = true
unaudited = ["plugins.talk", "plugins.digits"]
verifier_workers = 1
[model]
base = "tiny:"
[[domains]]
kind = "plugins.talk"
[[domains]]
kind = "plugins.digits"
[[stages]]
kind = "sft"
demonstrations = 8
data = {{ batch = 4 }}
checkpoint_every = 1
[[stages]]
kind = "rl"
steps = 4
pacing = {{ batch = 8, group = 4, eta = 1, refill = 1 }}
update = {{ algorithm = "dapo" }}
trainer = {{ lr = 1e-3 }}
sampling = {{ stop = {list("aeioustnrdmlkbcxyz0123456789")} }}
probe = {{ every = 2, tasks = 4 }}
checkpoint_every = 2
[evaluation]
tasks = 4
examples = 0
"""


def result(path):
    """All that is to be equal: weights, optimiser, progress; metrics without times; outcomes."""
    run = RunDirectory.view(path)
    saved = run.latest("rl").folder
    return {
        "checkpoint": {p.name: p.read_bytes() for p in (*saved.glob("trainer/*"), saved / "progress.json")},
        "metrics": {(m.stage, m.step): {k: v for k, v in m.values.items() if "second" not in k} for m in run.metrics},
        "outcomes": {(o.stage, o.task): (o.verdict.score, o.tokens, o.stop) for o in run.log("outcomes", Outcome)},
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_whose_episodes_workers_play_ends_bit_for_bit_like_one_of_a_single_process(tmp_path):
    recipe, far = tmp_path / "tiny.toml", tmp_path / "far.toml"
    recipe.write_text(RECIPE)
    far.write_text(RECIPE + '[workers]\nexecutor = "processes"\ncount = 2\nat_once = 3\n')
    for given in (recipe, far):
        code, errors = drive.run(given, tmp_path / given.stem).finish(300)
        assert code == 0, errors
    assert result(tmp_path / "far") == result(tmp_path / "tiny")
    run = RunDirectory.view(tmp_path / "far")
    assert {worker_of(trace) for trace in run.traces} == {"worker-1", "worker-2"}
    assert any(m.values.get("grad_norm", 0) > 0 for m in run.metrics if m.stage == "rl"), "something was learnt"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_run_that_was_killed_ends_bit_for_bit_like_one_that_was_not(kills, tmp_path):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(RECIPE)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    code, errors = drive.run(recipe, whole).finish(300)
    assert code == 0, errors
    rng = random.Random(kills)
    moments = [rng.uniform(0.1, 1.0) * drive.written(whole) for _ in range(kills)]
    code, errors = drive.killed(recipe, parts, moments, rng).finish(300)
    assert code == 0, errors
    assert result(parts) == result(whole)
    run = RunDirectory.view(whole)
    assert any(m.values.get("grad_norm", 0) > 0 for m in run.metrics if m.stage == "rl"), "something was learnt"
    assert list(run.log("dropped", Dropped)), "groups were replaced on the way"
