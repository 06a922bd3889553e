"""Updates that are all refused end a stage, and the checkpoints from before them are kept to go back to."""

import asyncio

import pytest

from temper.core import config
from temper.core.errors import BackendError
from temper.runs import driver, recipe
from temper.store.run import RunDirectory

TINY = {
    "name": "refused",
    "unaudited": ["plugins.digits"],
    "verifier_workers": 1,
    "model": {"base": "tiny:"},
    "domains": [{"kind": "plugins.digits"}],
    "evaluation": {"tasks": 2, "examples": 0},
}
SPIKE = 1e-6  # of the median: every update is refused, once eight norms are known
STAGES = {
    "sft": {"demonstrations": 64, "held": 2, "data": {"batch": 2}},
    "rl": {
        "steps": 30,
        "pacing": {"batch": 8, "group": 8},
        "sampling": {"stop": list("aeioustnrdmlkbcxyz")},
        "update": {"entropy": 0.01},  # so that each step has a gradient
        "probe": {"every": 0},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STAGES)
def test_refused_updates_end_the_stage_and_leave_the_checkpoints_of_the_last_good_ones(kind, tmp_path):
    stage = {"kind": kind, "trainer": {"spike": SPIKE, "lr": 1e-3}, "checkpoint_every": 1} | STAGES[kind]
    made = config.build(recipe.Recipe, TINY | {"stages": [stage]}, "test")
    with pytest.raises(BackendError, match="10 updates in a row were refused"):
        asyncio.run(driver.start(made, tmp_path / "run", []))
    run = RunDirectory.view(tmp_path / "run")
    steps = {m.step: m.values for m in run.metrics if m.stage == kind}
    applied = [step for step, values in sorted(steps.items()) if not values["skipped"]]
    assert applied
    assert max(steps) > applied[-1] + 1
    kept = sorted(folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == [f"{kind}-{step:06d}" for step in applied[-2:]]
