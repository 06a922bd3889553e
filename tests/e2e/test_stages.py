"""Every stage by recipe on the tiny model: chained, measured on held-out data, reported; a reward model that grades."""

import json
import random

import pytest
from plugins import drive

from temper.core.task import Message
from temper.models.scalar import Scorer
from temper.runs.answers import Drawn
from temper.runs.fitting import Measured
from temper.store.run import RunDirectory

RECIPE = """
name = "stages"
unaudited = ["plugins.digits"]
verifier_workers = 1
[model]
base = "tiny:"
[[domains]]
kind = "plugins.digits"
[evaluation]
tasks = 16
examples = 0
"""
STAGES = """
[[stages]]
kind = "sft"
demonstrations = 48
data = { batch = 8 }
trainer = { lr = 2e-3 }
[[stages]]
kind = "reward"
tasks = 16
held = 8
answers = 4
sampling = { max_tokens = 8 }
data = { batch = 8, epochs = 2 }
trainer = { lr = 3e-3 }
[[stages]]
kind = "preference"
tasks = 16
held = 8
answers = 3
sampling = { max_tokens = 8 }
data = { batch = 8 }
trainer = { lr = 1e-3 }
[[stages]]
kind = "rejection"
tasks = 16
answers = 4
threshold = 0.2
held = 8
sampling = { max_tokens = 8 }
data = { batch = 8 }
trainer = { lr = 1e-3 }
[[stages]]
kind = "distill"
teacher = "tiny:seed=5"
top_k = 0
steps = 4
batch = 8
held = 8
sampling = { max_tokens = 8 }
trainer = { lr = 3e-3 }
[[stages]]
kind = "rl"
steps = 2
pacing = { batch = 8, group = 4, eta = 1 }
update = { algorithm = { kind = "ppo", lam = 0.95 }, kl = 0.01 }
trainer = { scalar = true }
sampling = { max_tokens = 8 }
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "stages.toml"
    path.write_text(RECIPE.replace("[evaluation]", STAGES + "[evaluation]"))
    return path


@pytest.fixture(scope="module")
def folder(recipe, tmp_path_factory):
    """The directory of a run that nobody touched."""
    folder = tmp_path_factory.mktemp("whole") / "stages"
    code, errors = drive.run(recipe, folder).finish(280)
    assert code == 0, errors
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_recipe_chains_all_stages_and_each_improves_its_own_measure(folder):
    report = json.loads((folder / "report.json").read_text())
    assert list(report["stages"]) == ["base", "sft", "preference", "rejection", "distill", "rl"]
    measures = report["measures"]
    assert list(measures) == ["sft", "reward", "preference", "rejection", "distill"]
    for name, m in measures.items():
        gain = m["difference"] if m["better"] == "higher" else -m["difference"]
        assert gain > 0, (name, measures)
        assert m["low"] <= m["difference"] <= m["high"]
    assert "Each stage's own measure" in (folder / "report.md").read_text()
    calibration = json.loads((folder / "reward.json").read_text())
    assert calibration["pairs"] == 8
    assert calibration["accuracy"] == measures["reward"]["after"]
    model = max(folder.glob("checkpoints/reward-*")) / "trainer"
    scorer = Scorer(model)
    asked = (Message("user", "a"),)
    good, bad = (scorer((*asked, Message("assistant", text))) for text in ("1234567", "zzzqqqz"))
    assert good > bad
    whens = [(m.stage, m.when) for m in RunDirectory.view(folder).log("measured", Measured)]
    assert len(whens) == len(set(whens)) == 10


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_killed_at_random_moments_the_stages_resume_to_the_same_data(recipe, folder, tmp_path):
    rng = random.Random(1)
    moments = [rng.uniform(0.1, 1.0) * drive.written(folder) for _ in range(5)]
    code, errors = drive.killed(recipe, tmp_path / "parts", moments, rng).finish(300)
    assert code == 0, errors
    run = RunDirectory.view(tmp_path / "parts")
    measured = [(m.stage, m.when) for m in run.log("measured", Measured)]
    assert len(measured) == len(set(measured)) == 10
    drawn = {d.stage: (d.start, d.count) for d in run.log("drawn", Drawn)}
    assert drawn == {"reward": (16, 16), "preference": (32, 16), "rejection": (48, 16), "distill": (64, 32)}
    verdicts = [v.trace for v in run.verdicts if v.trace.startswith("preference-")]
    assert len(verdicts) == len(set(verdicts))
