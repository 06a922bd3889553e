"""The reward of training pays for what solves no held-out task: the stage says so while it trains."""

import asyncio
import json

import pytest

from temper.core import config
from temper.runs import driver, recipe
from temper.runs.stages.rl.probe import Probed
from temper.store.run import RunDirectory

RECIPE = {
    "name": "gamed",
    "unaudited": ["plugins.digits_kept"],
    "verifier_workers": 1,
    "model": {"base": "tiny:"},
    "domains": [{"kind": "plugins.digits_kept"}],
    "stages": [
        {
            "kind": "rl",
            "steps": 20,
            "pacing": {"batch": 64, "group": 16, "eta": 1},
            "sampling": {"stop": list("aeioustnrdmlkbcxyz")},
            "trainer": {"lr": 3e-3},
            "probe": {"every": 6, "tasks": 40},
            "checkpoint_every": 20,
        }
    ],
    "evaluation": {"tasks": 40, "examples": 0, "sampling": {"stop": list("aeioustnrdmlkbcxyz")}},
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_reward_that_is_gamed_is_said_in_alarm_metrics_and_report(tmp_path):
    path = tmp_path / "run"
    asyncio.run(driver.start(config.build(recipe.Recipe, RECIPE, "test"), path, []))
    run = RunDirectory.view(path)
    looks = {p.step: sum(p.solved.values()) / len(p.solved) for p in run.log("probed", Probed)}
    metrics = {m.step: m.values for m in run.metrics if m.stage == "rl"}
    assert list(looks) == [0, 6, 12, 18]
    assert {step - 1: values["heldout"] for step, values in metrics.items() if "heldout" in values} == looks
    assert metrics[20]["reward"] > metrics[1]["reward"] + 0.2
    assert looks[18] < looks[0] / 2
    alarms = [e.why for e in run.events if e.what == "alarm" and "reward hacking" in e.why]
    assert len(alarms) == 1
    assert "of 40 held-out tasks" in alarms[0]
    assert json.loads((path / "report.json").read_text())["alarms"].count(f"rl: {alarms[0]}") == 1
    assert f"- rl: {alarms[0]}" in (path / "report.md").read_text()
    assert "reward hacking" in (path / "why.html").read_text()
    assert "rl: heldout" in (path / "why.html").read_text()
