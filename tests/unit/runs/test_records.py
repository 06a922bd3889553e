"""What a restart takes for open groups and their samples."""

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from temper.core.task import Message, Task
from temper.core.trace import Segment, Trace, Verdict
from temper.runs.choice import Choice
from temper.runs.stages.rl.attempts import Attempts
from temper.runs.stages.rl.records import Groups, Rollout, named
from temper.scheduling.pacing import Config, Pacing, Ticket
from temper.store.run import RunDirectory


@pytest.fixture
def shop(tmp_path) -> Iterator[SimpleNamespace]:
    """A run, a stream of tasks, and nowhere to show events: all that is asked of a workshop here."""
    tasks = [Task(id=f"t{n}", domain="d", messages=()) for n in range(100)]
    with RunDirectory.create(tmp_path / "run", {}) as run:
        yield SimpleNamespace(run=run, event=lambda *_: None, tasks=lambda *_: iter(tasks))


def chosen(shop: SimpleNamespace) -> Groups:
    return Groups(shop, Choice(shop, {"d": 0}, 0, 2, 8))


def trace(name: str, *parents: int) -> Trace:
    """A tree of policy segments, each below the one of its number."""
    numbers = {"logprobs": np.zeros(3, np.float32), "versions": np.zeros(3, np.int32), "trainable": np.ones(3, bool)}
    ids, said = np.arange(3, dtype=np.int32), (Message("assistant", "x"),)
    segments = tuple(Segment(parent=p, author="policy", messages=said, ids=ids, **numbers) for p in parents)
    return Trace(id=name, task="t", domain="d", seed=0, segments=segments)


def graded(name: str, leaf: int) -> Verdict:
    return Verdict(trace=name, verifier="v", status="graded", blame="policy", score=1.0, leaf=leaf)


def test_a_group_that_was_cancelled_over_age_does_not_come_back(shop):
    pacing = Pacing(Config(batch=2, group=2), {"d": 1.0})
    groups = chosen(shop)
    while isinstance(ticket := pacing.admit(), Ticket):
        groups.task(ticket)
    assert len(groups.tasks) > 1
    Attempts.cancel(SimpleNamespace(running={}, groups=groups, pacing=pacing, shop=shop), 0)
    again = chosen(shop)
    again.restore(Pacing(Config(batch=2, group=2), {"d": 1.0}), [])
    assert again.tasks.keys() == groups.tasks.keys()
    assert 0 not in again.tasks


def test_leaves_of_an_earlier_attempt_of_the_same_name_are_no_samples(shop):
    groups, name = chosen(shop), named(0, 0)
    groups.task(Ticket(group=0, slot=0, domain="d", attempt=0, why=""))
    shop.run.traces.append(trace(name, -1, 0, 1, 0, 3))
    for leaf in (2, 4):
        shop.run.verdicts.append(Verdict.ruled("backend-lost", name, "v", leaf=leaf))
    shop.run.traces.append(trace(name, -1, 0, 0))
    for leaf in (1, 2):
        shop.run.verdicts.append(graded(name, leaf))
    shop.run.log("rollouts", Rollout).append(Rollout(group=0, slot=0, trace=name))
    again = chosen(shop)
    again.restore(Pacing(Config(batch=2, group=2), {"d": 1.0}), [])
    assert [(s.leaf, s.verdict.masked) for s in again.group(0).samples] == [(1, False), (2, False)]
