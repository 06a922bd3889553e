"""Tasks run some at a time, in any order, with results in theirs; only our own faults are run again."""

import asyncio

import numpy as np
import pytest

from temper.core.task import Message, Task
from temper.core.trace import Segment, Trace, Verdict
from temper.evaluation.runner import evaluate, with_examples

TASKS = [Task(id=f"t{i}", domain="math", level=2, messages=(Message("user", str(i)),)) for i in range(10)]


def result(task: Task, why: str = "graded") -> tuple[Trace, Verdict]:
    sampled = Segment(
        parent=-1, author="policy", messages=(), ids=np.arange(3), trainable=np.ones(3, bool),
        logprobs=np.zeros(3, np.float32), versions=np.array([-1, 0, 0]),
    )  # fmt: skip
    trace = Trace(id=task.id, task=task.id, domain=task.domain, seed=0, segments=(sampled,), stop="turns")
    return trace, Verdict.ruled(why, task.id, "exact", score=1.0)


def test_at_most_so_many_run_at_once_and_outcomes_keep_their_order():
    running, most, heard = 0, 0, []

    async def run_one(task):
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0.001 * (10 - int(task.id[1:])))
        running -= 1
        return result(task)

    outcomes = asyncio.run(evaluate(TASKS, run_one, 4, stage="base", progress=lambda done, _: heard.append(done)))
    assert most == 4
    assert [o.task for o in outcomes] == [t.id for t in TASKS]
    assert heard == list(range(1, 11))
    assert {(o.stage, o.level, o.stop, o.tokens, o.attempts, o.success) for o in outcomes} == {
        ("base", 2, "turns", 2, 1, True)
    }


@pytest.mark.parametrize(
    ("words", "attempts", "masked"),
    [
        (["network", "graded"], 2, False),
        (["network", "engine-lost", "preempted"], 3, True),
        (["deadline"], 1, False),
        (["gold-fails"], 1, True),
    ],
)
def test_only_faults_of_ours_are_run_again_and_at_most_twice(words, attempts, masked):
    left = list(words)

    async def run_one(task):
        return result(task, left.pop(0))

    (outcome,) = asyncio.run(evaluate(TASKS[:1], run_one, 8))
    assert (outcome.attempts, outcome.verdict.masked, left) == (attempts, masked, [])


def test_an_error_ends_the_evaluation_and_is_raised_as_it_is():
    async def run_one(task):
        if task.id == "t3":
            raise KeyError(task.id)
        return result(task)

    with pytest.raises(KeyError, match="t3"):
        asyncio.run(evaluate(TASKS, run_one, 2))


def test_no_tasks_give_no_outcomes():
    assert asyncio.run(evaluate([], None, 2)) == []


def test_examples_come_before_the_question_and_behind_the_system_message():
    system, question = Message("system", "be brief"), Message("user", "3?")
    shown = [(Message("system", "other"), Message("user", q), Message("assistant", q)) for q in ("1", "2")]
    with_system = with_examples(Task(id="t", domain="d", messages=(system, question)), shown)
    assert [m.content for m in with_system.messages] == ["be brief", "1", "1", "2", "2", "3?"]
    without = with_examples(Task(id="t", domain="d", messages=(question,)), shown[:1])
    assert [m.content for m in without.messages] == ["1", "1", "3?"]
    assert without.id == "t"
