"""Whole runs on the tiny model, as a person starts them: the command, the run directory, the report."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from plugins.drive import Command, killed, written

from temper.evaluation.outcome import Outcome
from temper.runs.stages.rl.records import Opened, Progress, Rollout
from temper.store.run import RunDirectory

HERE = Path(__file__).parent

RECIPE = """
name = "tiny"
unaudited = ["arithmetic"]
verifier_workers = 1
sinks = [{ kind = "jsonl" }]
[model]
base = "tiny:"
[[domains]]
kind = "arithmetic"
[[stages]]
kind = "sft"
demonstrations = 16
data = { batch = 8 }
checkpoint_every = 1
[[stages]]
kind = "rl"
steps = 4
pacing = { batch = 8, group = 4, eta = 1 }
sampling = { max_tokens = 12 }
[evaluation]
tasks = 6
examples = 1
"""


def temper(*args, **more):
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        [sys.executable, "-m", "temper.cli", *args], env=env, stderr=subprocess.PIPE, text=True, **more
    )


def finish(process, seconds=100):
    _, errors = process.communicate(timeout=seconds)
    return process.returncode, errors


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    """The directory of a run that nobody touched."""
    root = tmp_path_factory.mktemp("whole")
    code, errors = finish(temper("run", str(recipe), "--root", str(root), stdout=subprocess.DEVNULL))
    assert code == 0, errors
    return root / "tiny"


def trained_groups(run):
    saved = run.latest("rl").folder
    return msgspec.json.decode((saved / "progress.json").read_bytes(), type=Progress).trained


@pytest.mark.slow
def test_a_recipe_runs_from_start_to_report(whole):
    report = json.loads((whole / "report.json").read_text())
    assert list(report["stages"]) == ["base", "sft", "rl"]
    assert all(stage["overall"]["n"] == 6 for stage in report["stages"].values())
    assert (whole / "report.png").read_bytes().startswith(b"\x89PNG")
    assert '"reward"' in (whole / "metrics.jsonl").read_text()
    run = RunDirectory.view(whole)
    assert len(trained_groups(run)) == 4 * 2
    assert min(o.index for o in run.log("groups", Opened)) == 16, "RL begins after the tasks that SFT has shown"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.nightly)])
def test_killed_at_random_moments_it_resumes_and_trains_each_rollout_once(kills, recipe, whole, tmp_path, descendants):
    rng = random.Random(kills)
    path = tmp_path / "tiny"
    Command("list").finish()  # starts what starts processes
    mounts, before = Path("/proc/self/mountinfo").read_text(), set(descendants())
    command = killed(recipe, path, [rng.uniform(0.1, 1.0) * written(whole) for _ in range(kills)], rng)
    code, errors = command.finish(300)
    assert code == 0, errors
    run = RunDirectory.view(path)
    trained = trained_groups(run)
    assert len(trained) == len(set(trained)) == 4 * 2
    slots = {}
    for rollout in run.log("rollouts", Rollout):
        slots.setdefault(rollout.group, []).append(rollout.slot)
    assert all(sorted(slots[group]) == [0, 1, 2, 3] for group in trained)
    opened = [o.group for o in run.log("groups", Opened)]
    assert len(opened) == len(set(opened)), "a group was opened twice"
    stages = [o.stage for o in run.log("outcomes", Outcome)]
    assert {s: stages.count(s) for s in stages} == {"base": 6, "sft": 6, "rl": 6}
    until = time.monotonic() + 10
    while (left := set(descendants()) - before) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left, "processes are left over"
    assert Path("/proc/self/mountinfo").read_text() == mounts


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_reinforcement_learning_reaches_a_reward_that_random_cannot(tmp_path):
    path = tmp_path / "digits.toml"
    path.write_text(
        """
name = "digits"
unaudited = ["plugins.digits"]
verifier_workers = 1
[model]
base = "tiny:"
[[domains]]
kind = "plugins.digits"
[[stages]]
kind = "rl"
steps = 40
pacing = { batch = 128, group = 32, eta = 1 }
trainer = { lr = 3e-3 }
[evaluation]
tasks = 32
examples = 0
sampling = { temperature = 1.0 }
"""
    )
    code, errors = Command("run", path, "--root", tmp_path).finish(280)
    assert code == 0, errors
    report = json.loads((tmp_path / "digits" / "report.json").read_text())
    before = report["stages"]["base"]["overall"]["score"]
    after = report["stages"]["rl"]["overall"]["score"]
    assert before < 0.1
    assert after > 0.5  # four seeds gave 0.67 to 1.0


@pytest.mark.slow
def test_several_tries_are_different_answers_counted_by_task(tmp_path):
    path = tmp_path / "tries.toml"
    path.write_text(
        """
name = "tries"
stages = []
verifier_workers = 1
[model]
base = "tiny:"
[[domains]]
kind = "plugins.digits"
[evaluation]
tasks = 8
tries = 4
examples = 0
sampling = { temperature = 1.0 }
"""
    )
    code, errors = Command("run", path, "--root", tmp_path).finish(100)
    assert code == 0, errors
    run = RunDirectory.view(tmp_path / "tries")
    overall = json.loads((run.path / "report.json").read_text())["stages"]["base"]["overall"]
    assert (overall["n"], overall["rollouts"], sorted(overall["pass_at"])) == (8, 32, ["2", "4"])
    said = {trace.id: trace.segments[-1].ids.tobytes() for trace in run.traces}
    assert len(said) == 32
    assert len(set(said.values())) > 16
    for outcome in run.log("outcomes", Outcome):
        assert outcome.verdict.trace.startswith(f"base-{outcome.task}")


@pytest.mark.slow
def test_interrupt_stops_cleanly_and_says_how_to_resume(recipe, tmp_path):
    process = temper("run", str(recipe), "--root", str(tmp_path), stdout=subprocess.DEVNULL)
    next(line for line in process.stderr if "ready" in line)
    process.send_signal(signal.SIGINT)
    code, errors = finish(process, 60)
    assert code == 130
    assert f"--resume {tmp_path / 'tiny'}" in errors


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["run", "quickstrat"], 3, "did you mean 'quickstart'"),
        (["run", "smoke", "evaluation.task=3"], 2, "did you mean 'tasks'"),
        (["run", "smoke", "model.base=/nowhere"], 3, "/nowhere"),
        (["run", "--resume", "/nowhere"], 3, "no run at"),
        (["run"], 2, "expected a recipe"),
        (["bench", "nothing"], 3, "nothing is measured"),
        (["list", "domain"], 3, "did you mean 'domains'"),
    ],
)
def test_bad_input_gets_a_clear_error_and_its_exit_code(args, code, words, tmp_path):
    more = ["--root", str(tmp_path)] if args[0] == "run" and "--resume" not in args else []
    found, errors = finish(temper(*args, *more, stdout=subprocess.DEVNULL))
    assert found == code
    assert words in errors
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hundred_turns_run_train_and_resume_once_the_micro_batch_has_room(tmp_path):
    path = tmp_path / "counter.toml"
    path.write_text(
        """
name = "counter"
unaudited = ["plugins.counter"]
verifier_workers = 1
[model]
base = "tiny:"
[[domains]]
kind = "plugins.counter"
[[stages]]
kind = "sft"
demonstrations = 4
data = { batch = 1 }
trainer = { lr = 1e-3, micro_tokens = 2048 }
checkpoint_every = 1
[evaluation]
tasks = 1
examples = 0
"""
    )
    code, errors = Command("run", path, "--root", tmp_path).finish()
    assert code == 2
    assert "raise the trainer's micro_tokens" in errors
    again = Command("run", "--resume", tmp_path / "counter", "stages.0.trainer.micro_tokens=4096")
    while not list((tmp_path / "counter").glob("checkpoints/sft-*")) and again.process.is_alive():
        time.sleep(0.05)
    again.kill()
    code, errors = Command("run", "--resume", tmp_path / "counter").finish(200)
    assert code == 0, errors
    losses = {m.step: m.values["loss"] for m in RunDirectory.view(tmp_path / "counter").metrics}
    assert list(losses) == [1, 2, 3, 4]
    assert losses[4] < losses[1]


@pytest.mark.slow
def test_a_domain_that_raises_is_the_tasks_fault_and_stops_the_run_with_its_reason(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text(
        """
name = "broken"
unaudited = ["plugins.broken"]
verifier_workers = 1
[model]
base = "tiny:"
[[domains]]
kind = "plugins.broken"
[[stages]]
kind = "rl"
steps = 1
pacing = { batch = 8, group = 4 }
[evaluation]
tasks = 2
examples = 0
"""
    )
    code, errors = Command("run", path, "--root", tmp_path).finish()
    assert code == 6
    assert "the world is missing" in errors
    assert "Traceback" not in errors
    verdicts = list(RunDirectory.view(tmp_path / "broken").verdicts)
    assert {(v.status, v.blame, v.why) for v in verdicts} == {("invalid", "task", "environment-broken")}


@pytest.mark.slow
def test_an_outage_costs_tries_and_no_task_and_every_rollout_says_why(tmp_path):
    path = tmp_path / "outage.toml"
    path.write_text(
        """
name = "outage"
unaudited = ["plugins.outage"]
verifier_workers = 1
[model]
base = "tiny:"
[[domains]]
kind = "plugins.outage"
[[stages]]
kind = "rl"
steps = 2
floor = 0.25
pacing = { batch = 16, group = 4, eta = 1, attempts = 6 }
[evaluation]
tasks = 2
examples = 0
"""
    )
    code, errors = Command("run", path, "--root", tmp_path).finish()
    assert code == 0, errors
    run = RunDirectory.view(tmp_path / "outage")
    assert len(trained_groups(run)) == 2 * 4
    said = [event.what for event in run.events]
    assert said.count("opened") == 1, "twelve faults in a row open the breaker once"
    assert "closed" in said
    assert "quarantined" not in said
    assert said.count("retried") >= 12
    told = {e.whom for e in run.events if e.what == "admitted" and e.why}
    assert told >= {t.id for t in run.traces if t.id.startswith("rl-") and "heldout" not in t.id}
