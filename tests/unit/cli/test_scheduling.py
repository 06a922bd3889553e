"""`temper simulate`, `temper plan` and `temper why`, as a person calls them."""

import pytest
from typer.testing import CliRunner

from temper.cli import app, plan, simulate, why
from temper.core.errors import ConfigError, MissingError
from temper.core.trace import Cost, Event, Trace, Verdict
from temper.store.run import RunDirectory

VERBS = (plan, simulate, why)  # importing them adds them
SMALL = ["steps=3", "policy.batch=8", "policy.group=4", "policy.capacity=4", "cluster.decode=4"]


@pytest.fixture
def run(tmp_path):
    """A run directory with eight rollouts of two groups."""
    path = tmp_path / "run"
    with RunDirectory.create(path, {"name": "small"}) as made:
        for group in (1, 12):
            for slot in range(4):
                name = f"rl-{group}-{slot}-0"
                made.events.append(Event(when=1.0, what="admitted", whom=name, why="probe of a new group"))
                made.traces.append(_trace(name, f"task-{group}", 1.0 + slot))
                made.verdicts.append(Verdict.ruled("graded", name, "v", "odd \x1b[31m colour", score=1.0))
        made.events.append(Event(when=2.0, what="wait", whom="rl", why="hold: group 12 would be trained older than 1"))
    return path


def _trace(name: str, task: str, seconds: float) -> Trace:
    return Trace(id=name, task=task, domain="arithmetic", seed=0, cost=Cost(decode=seconds))


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_why_tells_the_story_of_one_rollout_and_of_nobody_else(run):
    story = invoke("why", str(run), "rl-12-3-0")
    assert "probe of a new group" in story
    assert "hold: group 12" in story
    assert "decode 4.00 s" in story
    assert "rl-12-2-0" not in story


def test_why_tells_of_a_whole_group(run):
    story = invoke("why", str(run), "rl-1")
    assert all(f"rl-1-{slot}-0" in story for slot in range(4))
    assert "rl-12" not in story


def test_why_shows_no_control_characters(run):
    assert "\x1b" not in invoke("why", str(run), "rl-1-0-0")


def test_why_without_a_rollout_tells_of_the_run_or_writes_a_page_of_it(run):
    story = invoke("why", str(run))
    assert "8 × probe of a new group" in story
    assert "1 × hold: group # would be trained older than #" in story
    shown = invoke("why", str(run), "--page")
    assert str(run / "why.html") in shown
    assert "probe of a new group" in (run / "why.html").read_text("utf-8")


def test_why_names_near_rollouts(run):
    with pytest.raises(MissingError, match="rl-1-0-0"):
        invoke("why", str(run), "rl-1-0-9")


def test_why_writes_no_page_of_one_rollout(run):
    with pytest.raises(ConfigError, match="of the whole run"):
        invoke("why", str(run), "rl-1-0-0", "--page")


def test_simulate_draws_from_recorded_lengths(run):
    shown = invoke("simulate", str(run), *SMALL)
    assert "24 rollouts in 3 steps" in shown


def test_simulate_compares_with_the_published_policies():
    shown = invoke("simulate", *SMALL, "--compare")
    assert all(name in shown for name in ("temper", "fifo", "cancel", "tail batching", "partial", "window"))


@pytest.mark.parametrize(("setting", "said"), [("cluster.decoed=3", "decode"), ("policy=3", "policy: Expected")])
def test_simulate_refuses_an_unknown_setting_and_one_of_another_type(setting, said):
    with pytest.raises(ConfigError, match=said):
        invoke("simulate", setting)


def test_simulate_tells_of_replicas_and_memory():
    shown = invoke(
        "simulate", *SMALL, "cluster.replicas=2", "cluster.cache=40000", "cluster.speed.each=0.1", "cluster.memory=8",
        "loads=[{median = 1000, memory = 4}]",
    )  # fmt: skip
    assert "24 rollouts in 3 steps" in shown
    assert "migrations" in shown
    assert "memory: 0 rollouts began again" in shown
    assert "used: memory" in shown


def test_plan_answers_and_says_what_it_assumed():
    shown = invoke("plan", "laptop", "pacing.batch=32")
    assert "busiest stage" in shown
    assert "weights     lora" in shown
    assert "assumed.busy = 0.8 (assumed)" in shown
    assert "Formulas:" in shown
