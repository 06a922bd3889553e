"""A score for people, which is all or nothing, and a reward for training, which is how near the answer is."""

import asyncio

import pytest

from temper.core.task import Message, Task
from temper.core.trace import Segment, Trace
from temper.verifiers import similarity


def verdict(answer, gold):
    task = Task(id="t", domain="d", messages=(Message("user", "?"),), reference={"answer": gold})
    segments = (Segment.given(task.messages, []), Segment.given((Message("assistant", answer),), [], 0))
    trace = Trace(id="r", task="t", domain="d", seed=0, segments=segments)
    return asyncio.run(similarity.create().grade(task, trace, {}))


@pytest.mark.parametrize(
    ("answer", "gold", "ratio"),
    [
        ("abcd", "bcde", 0.75),  # the example of SequenceMatcher.ratio in Python's documentation
        ("tide", "diet", 0.25),  # its example of a result that depends on the order of the arguments
        ("diet", "tide", 0.5),
        ("olleh", "olleh", 1.0),
        ("", "olleh", 0.0),
    ],
)
def test_the_reward_is_difflibs_ratio_and_the_score_is_not(answer, gold, ratio):
    found = verdict(answer, gold)
    assert found.reward == ratio
    assert found.score == float(ratio == 1)
    assert found.components == {"similarity": ratio}


def test_what_surrounds_the_answer_and_the_form_of_its_letters_do_not_count_but_capitals_do():
    assert verdict(" e\u0301t\u00e9\n", "\u00e9t\u00e9").score == 1
    assert verdict("OLLEH", "olleh").score == 0


def test_any_of_several_answers_is_right_and_the_nearest_counts():
    assert verdict("abcd", ["zzzz", "bcde"]).reward == 0.75


def test_a_flood_that_holds_the_answer_earns_nothing():
    assert verdict("olleh" * 10_000, "olleh").reward == 0


def test_a_task_without_an_answer_is_masked():
    assert verdict("olleh", "").masked
