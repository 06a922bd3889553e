import itertools
import re

import pytest
import sympy

from temper.core.task import Message
from temper.domains import arithmetic

DOMAIN = arithmetic.create()


def some(level, n=1, seed=0):
    return list(itertools.islice(DOMAIN.tasks("train", level, seed), n))


@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_line_of_the_working_is_true(level):
    """By sympy's arithmetic."""
    for task in some(level, 100):
        for line in task.reference["answer"].split("\n"):
            left, right = line.split("=")
            assert sympy.Rational(sympy.sympify(left)) == sympy.sympify(right), line


def test_expressions_in_the_question_have_the_gold_value():
    """By sympy's arithmetic."""
    for level in (1, 2, 3):
        for task in some(level, 300):
            if asked := re.match(r"([-+*/() 0-9]+) = \?", task.messages[0].content):
                result = task.reference["answer"].rpartition("=")[2]
                assert sympy.sympify(asked[1]) == sympy.sympify(result), task


def test_no_number_of_the_question_is_the_answer():
    for task in some(1, 300):
        assert task.reference["answer"].rpartition("=")[2] not in re.findall(r"\d+", task.messages[0].content)


def test_the_result_alone_and_the_working_both_pass(say):
    for task in some(1, 5):
        for answer in (task.reference["answer"], task.reference["answer"].rpartition("=")[2]):
            assert say(DOMAIN, task, [Message("assistant", answer)])[1].score == 1


def test_a_calculation_that_is_not_carried_out_is_no_answer(say):
    """Else the model would learn to hand the expression back."""
    for task in some(1, 5):
        unfinished = task.reference["answer"].partition("=")[0]
        assert say(DOMAIN, task, [Message("assistant", unfinished)])[1].score == 0
        assert say(DOMAIN, task, [Message("assistant", f"{unfinished}={unfinished}")])[1].score == 0
