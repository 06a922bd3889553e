"""Which task a new group gets, over a real domain's stream."""

import pytest

from temper.core.trace import Sample, Trace, Verdict
from temper.runs.choice import Choice
from temper.runs.recipe import DomainEntry, Recipe
from temper.runs.workshop import Workshop
from temper.store.run import RunDirectory


@pytest.fixture
def shop(tmp_path):
    recipe = Recipe(name="choice", domains=(DomainEntry(kind="arithmetic"),), stages=())
    with RunDirectory.create(tmp_path / "run", recipe) as run:
        yield Workshop(recipe, run, [])


def samples(task, *scores):
    traces = [Trace(id=f"t{n}", task=task.id, domain=task.domain, seed=0) for n in range(len(scores))]
    return [Sample(t, Verdict.ruled("graded", t.id, "v", "", score=s)) for t, s in zip(traces, scores, strict=True)]


def test_a_task_of_a_window_that_was_tried_is_known_by_what_a_try_took(shop):
    choice = Choice(shop, {"arithmetic": 0}, window=40, size=2, groups=8)
    _, tried = choice.next("arithmetic")
    _, other = choice.next("arithmetic")
    assert choice.took(tried) == 0
    choice.learnt(tried, samples(tried, 1.0, 0.0), seconds=3.0, version=1)
    assert choice.took(tried) == pytest.approx(3.0)
    assert choice.took(other) == 0


def test_a_stream_without_a_window_goes_on_and_remembers_nothing(shop):
    choice = Choice(shop, {"arithmetic": 5}, window=0, size=2, groups=8)
    first, task = choice.next("arithmetic")
    choice.learnt(task, samples(task, 1.0, 0.0), seconds=3.0, version=1)
    second, next_task = choice.next("arithmetic")
    assert (first, second) == (5, 6)
    assert task.id != next_task.id
    assert choice.took(task) == 0
