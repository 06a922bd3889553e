"""Sinks are found by name and write what they are given."""

import json

import pytest

from temper.core.registry import configure, names
from temper.core.trace import Event
from temper.store.run import RunDirectory


@pytest.fixture
def run(tmp_path):
    with RunDirectory.create(tmp_path / "run", {}) as run:
        yield run


def sink(kind, run):
    module, config = configure("store.sinks", kind)
    return module.create(config, run)


def test_sinks_are_listed():
    assert set(names("store.sinks")) >= {"jsonl", "tensorboard"}


def test_jsonl_writes_a_line_for_each_step_and_goes_on_after_a_resume(run):
    for step in (1, 2):
        lines = sink("jsonl", run)
        lines.metrics(step, {"reward": 0.5, "loss": float("nan")})
        lines.event(Event(when=1.0, what="publish", why="version 1"))
        lines.close()
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"step": step, "reward": 0.5, "loss": None} for step in (1, 2)]
    assert json.loads((run.path / "events.jsonl").read_text().splitlines()[0])["what"] == "publish"


def test_tensorboard_writes_its_scalars(run):
    pytest.importorskip("tensorboardX")
    board = sink("tensorboard", run)
    board.metrics(1, {"reward/math": 0.5})
    board.event(Event(when=1.0, what="publish"))
    board.close()
    (file,) = (run.path / "tensorboard").glob("events.out.tfevents.*")
    assert b"reward/math" in file.read_bytes()
