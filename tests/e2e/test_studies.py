"""The scripts of `benchmarks/studies` as a person starts them, at the least size: they write their pages, and go on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "benchmarks" / "studies"
SMALL = ["--set", "evaluation.tasks=8", "--set", "stages.0.steps=2", "--set", "verifier_workers=1"]
TINY = """
name = "NAME"
[model]
base = "tiny:"
train = "all"
[[domains]]
kind = "reverse_text"
STAGES
[evaluation]
tasks = 8
examples = 0
"""
SFT = '[[stages]]\nkind = "sft"\ndemonstrations = 64\nheld = 8\ntrainer = { lr = 2e-3 }\n'
PAIRS = "tasks = 8\nheld = 8\nanswers = 3\ntrainer = { lr = 1e-3 }\n"


def study(name: str, folder: Path, *words: str, result: str = "") -> dict:
    """What a study found; started again it runs nothing, and finds the same."""
    out = folder / "results"
    command = [sys.executable, str(STUDIES / f"{name}.py"), "--root", str(folder / "runs"), "--out", str(out), *words]
    said, found = [], []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stderr.count("temper run"))
        found.append([(out / f"{result or name}.{kind}").read_bytes() for kind in ("json", "md", "png")])
        assert ("runs are left, about" in done.stderr) == (said[-1] > 0)
    assert said[0] > said[1] == 0
    assert found[0][:2] == found[1][:2]
    assert f"({result or name}.png)" in found[0][1].decode()
    return json.loads(found[0][0])


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_asynchrony_and_saving_from_one_warm_start(tmp_path):
    less = [*SMALL, "--seeds", "1"]
    found = study("asynchrony", tmp_path, *less, "--only", "eta 1", "--only", "eta 1, cancelling", result="async")
    assert list(found["arms"]) == ["synchronous", "eta 1", "eta 1, cancelling"]
    assert found["arms"]["synchronous"]["age_max"] == 0
    assert found["arms"]["eta 1"]["kept_over_started"] == [1, 1, 1]
    assert found["recommended"] in found["arms"]
    found = study("saving", tmp_path, *less, "--window", "150")
    assert found["seeds"][0]["tokens_uniform"] > 0
    assert found["interval"]["n"] == 1


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_curves_of_a_shipped_recipe(tmp_path):
    small = ["evaluation.tasks=8", "stages.0.demonstrations=64", "stages.1.steps=2"]
    words = ["guess_number", "--seeds", "1", *(w for s in small for w in ("--set", s))]
    found = study("curves", tmp_path, *words, result="guess_number")
    assert list(found["stages"]) == ["base", "sft", "rl"]
    assert len(found["rl"][0]) == 2
    assert found["stages"]["rl"]["overall"]["n"] == 8


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_stages_with_a_teacher_of_their_own(tmp_path):
    chain = SFT + "".join(f'[[stages]]\nkind = "{kind}"\n{PAIRS}' for kind in ("reward", "preference"))
    chain += '[[stages]]\nkind = "distill"\nteacher = ""\ntop_k = 8\nsteps = 1\nbatch = 8\nheld = 8\n'
    for name, stages in (("stages", chain), ("teacher", SFT)):
        (tmp_path / f"{name}.toml").write_text(TINY.replace("NAME", name).replace("STAGES", stages))
    words = [w for name in ("recipe", "teacher") for w in (f"--{name}", str(tmp_path / f"{name}.toml"))]
    words[1] = str(tmp_path / "stages.toml")
    found = study("stages", tmp_path, *words)
    (found,) = found["seeds"]
    assert list(found["measures"]) == ["sft", "reward", "preference", "distill"]
    assert list(found["success"]) == ["sft", "preference", "distill"]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_transfer_between_leaves_that_a_tiny_model_can_try(tmp_path):
    small = ["model={base = 'tiny:', train = 'all'}", "stages.0.demonstrations=16", "stages.1.steps=1"]
    small += ["stages.1.pacing={batch = 32, group = 4}"]
    leaves = [
        "--four",
        "arithmetic@1",
        "reverse_text@1",
        "--every",
        "table_questions@1",
        "reverse_text@1",
        "arithmetic@1",
        "--leaves",
        "arithmetic@2",
        "--families",
        "guess_number@1",
    ]
    found = study("transfer", tmp_path, "--tasks", "4", *leaves, *(w for s in small for w in ("--set", s)))
    assert list(found["results"]) == ["the trained leaf", "held-out leaves", "held-out families"]
    assert found["arms"]["1 leaf"] == ["arithmetic@1"]
    assert all(cell["success"]["n"] == 4 for arms in found["results"].values() for cell in arms.values())
