"""`temper simulate` and `temper why`, as a person calls them."""

import pytest
from typer.testing import CliRunner

from temper.cli import app, simulate, why
from temper.core.errors import ConfigError, MissingError
from temper.core.trace import Cost, Event, Trace, Verdict
from temper.store.run import RunDirectory

VERBS = (simulate, why)  # importing them adds them
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


def test_why_names_near_rollouts(run):
    with pytest.raises(MissingError, match="rl-1-0-0"):
        invoke("why", str(run), "rl-1-0-9")


def test_simulate_draws_from_recorded_lengths(run):
    shown = invoke("simulate", str(run), *SMALL)
    assert "24 rollouts in 3 steps" in shown


def test_simulate_compares_with_the_published_policies():
    shown = invoke("simulate", *SMALL, "--compare")
    assert all(name in shown for name in ("temper", "fifo", "cancel", "tail batching", "partial", "window"))


def test_simulate_refuses_an_unknown_setting():
    with pytest.raises(ConfigError, match="decode"):
        invoke("simulate", "cluster.decoed=3")
