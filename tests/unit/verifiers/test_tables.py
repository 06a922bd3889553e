"""Answers about tables by what they denote, after the rules of WikiTableQuestions' evaluator, and stricter on lists."""

# ruff: noqa: E501  (tables of short entries)

from __future__ import annotations

import pytest

from temper.verifiers import tables

RIGHT = [
    (["1,234"], "1234"), (["1234"], "1,234.0"), (["7"], "seven"), (["5"], "5 goals"), (["5 km"], "5000 m"), (["5 km"], "5"),
    (["90 min"], "1.5 hours"), (["$5,200,000"], "$5.2 million"), (["45%"], "45 percent"), (["-3"], "−3"),
    (["1990-06-03"], "June 3, 1990"), (["3 June 1990"], "3rd of June 1990"), (["June 1990"], "Jun 1990"), (["1990"], "1990."),
    (["Beyoncé"], "beyonce"), (["The Wall"], "wall"), (["Paris, France"], "It is clear.\nAnswer: **Paris, France**"),
    (["Ann", "Bob"], "Bob | Ann"), (["Ann", "Bob"], "Ann and Bob"), (["Ann", "Bob", "Cy"], "Cy, Ann, and Bob"),
    (["Ann", "Bob"], "answer:\n- Bob\n- Ann"), (["1,234", "5"], "5, 1,234"), (["2", "2"], "2 | 2"), (["may"], "May"),
    (["Jean-Luc O'Neil"], "Jean–Luc O‘Neil"), (["Oslo (Norway)"], "Oslo"), (["12 (2nd)"], "12"), (["Oslo (Norway)"], "oslo (norway)"),
]  # fmt: skip
WRONG = [
    (["5"], "5 million"), (["5"], "5 or 6"), (["5"], "not 5"), (["5 km"], "5 kg"), (["5 km"], "5 m"), (["45%"], "0.45"),
    (["45%"], "45"), (["3"], "-3"), (["1234"], "12,34"), (["0.333"], "1/3"), (["1990-06-03"], "June 1990"),
    (["3 June 1990"], "6 March 1990"), (["June 1990"], "1990"), (["Ann", "Bob"], "Ann"), (["Ann", "Bob"], "Ann, Bob, Cy"),
    (["Ann", "Bob"], "Ann, Ann"), (["2", "2"], "2"), (["Ann"], "Ann | Bob"), (["Ann"], "Bob. Answer: Bob"), (["5"], ""),
    (["5"], "nan"), (["5"], "The table has 5 rows"), (["Paris"], "Paris is nice"), (["12:30"], "12"),
    (["Oslo"], "Oslo (or Bergen)"), (["Oslo (Norway)"], "Norway"), (["Oslo (Norway)"], "Oslo (Sweden)"), (["5"], "9" * 5000), (["5 km"], "9" * 5000 + " km"),
]  # fmt: skip


@pytest.fixture
def grade(judged, pool):
    return lambda gold, answer: judged(tables.create(None, pool), {"answer": gold}, answer)


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_right(grade, gold, answer):
    assert grade(gold, answer).score == 1.0


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_wrong(grade, gold, answer):
    verdict = grade(gold, answer)
    assert (verdict.status, verdict.score) == ("graded", 0.0)
    assert verdict.evidence


def test_an_empty_reference_is_refused(grade):
    assert grade([], "").why == grade([""], "").why == "reference-missing"
