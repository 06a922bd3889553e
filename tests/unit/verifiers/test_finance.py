"""Figures from tables. The table and its results were worked out by hand."""

from __future__ import annotations

import json

import msgspec
import pytest

from temper.verifiers import finance

ROWS = [
    ["USD million", "2022", "2023"],
    ["Revenue", "1,200", "1,350"],
    ["Materials", "500", "520"],
    ["Wages", "300", "380"],
    ["Total costs", "800", "900"],
    ["Net interest", "(12)", "6"],
]
GROWTH = {"rows": ROWS, "program": "(C2 - B2) / B2 * 100", "unit": "%", "period": "2023", "decimals": 1}
COSTS = {
    "rows": ROWS, "program": "C5", "unit": "USD", "scale": "million", "table_scale": "million", "period": "2023",
    "decimals": 0, "formulas": {"B5": "sum(B3:B4)", "C5": "sum(C3:C4)"},
}  # fmt: skip
INTEREST = {"rows": ROWS, "program": "B6", "unit": "USD", "scale": "million", "table_scale": "million", "decimals": 0}
G = {"value": 12.5, "unit": "%", "period": "2023", "program": "(C2 - B2) / B2 * 100"}
C = {"value": 900, "unit": "USD", "scale": "million", "period": "2023", "program": "C5"}

CASES = [
    # reference, what is changed in the right answer, whether it is still right
    (GROWTH, {}, True),
    (GROWTH, {"value": "12.50", "program": "(C2 / B2 - 1) * 100"}, True),
    (GROWTH, {"value": 0.125, "unit": "", "program": "(C2 - B2) / B2"}, True),
    (GROWTH, {"unit": ""}, False),  # 12.5 is not 12.5 %
    (GROWTH, {"value": 0.125}, False),  # nor is 0.125 %
    (GROWTH, {"value": 12.6}, False),
    (GROWTH, {"period": "2022"}, False),
    (GROWTH, {"period": "FY23"}, True),
    (GROWTH, {"period": "year ended December 31, 2023"}, True),
    (GROWTH, {"program": "12.5"}, False),  # read off, not computed
    (GROWTH, {"program": "(C2 - B2) / C2 * 100"}, False),
    (GROWTH, {"program": "(1350 - 1200) / 1200 * 100"}, False),
    (GROWTH, {"program": ""}, False),
    (GROWTH, {"program": "C2 / 0"}, False),
    (GROWTH, {"program": "__import__('os').getpid()"}, False),
    (GROWTH, {"program": "9**9**9"}, False),
    (GROWTH, {"program": "sum(-B2:B3)"}, False),
    (COSTS, {}, True),
    (COSTS, {"value": 0.9, "scale": "billion"}, True),
    (COSTS, {"value": "900,000,000", "scale": "", "unit": "$"}, True),
    (COSTS, {"program": "C3 + C4"}, True),  # the total is the sum of these
    (COSTS, {"program": "=sum(C3:C4)"}, True),
    (COSTS, {"program": "C2 - 450"}, False),  # fits this table only
    (COSTS, {"program": "B5 + 100"}, False),
    (COSTS, {"scale": ""}, False),
    (COSTS, {"scale": "thousand"}, False),
    (COSTS, {"scale": "dozen"}, False),
    (COSTS, {"unit": "EUR"}, False),
    (COSTS, {"value": True}, False),
    (COSTS, {"value": "9" * 5000}, False),
    (COSTS, {"value": "\ud800"}, False),
    (COSTS, {"unit": ["USD"], "period": {"a": 1}}, False),
    (INTEREST, {"value": -12, "program": "B6", "period": ""}, True),
    (INTEREST, {"value": "(12)", "program": "B6", "period": ""}, True),
    (INTEREST, {"value": 12, "program": "B6", "period": ""}, False),
]


@pytest.mark.parametrize(("reference", "change", "right"), CASES)
def test_answers(judged, pool, reference, change, right):
    answer = json.dumps({**(G if reference is GROWTH else C), **change})
    verdict = judged(finance.create(None, pool), reference, answer)
    assert (verdict.status, verdict.score) == ("graded", right), verdict.evidence
    assert right or verdict.evidence[0].text


def test_a_value_without_a_program_needs_none(judged, pool):
    reference = {"value": "-233", "unit": "EUR", "scale": "thousand", "decimals": 0}
    for value, right in ((-233, 1), (233, 0), ("(233)", 1)):
        answer = json.dumps({"value": value, "unit": "EUR", "scale": "thousand"})
        assert judged(finance.create(None, pool), reference, answer).score == right


NAMES = {"value": ["fixed-price type", "cost-plus type"], "scale": ""}
PRICE = {"value": ["$1,496.5"], "scale": "million"}


@pytest.mark.parametrize(
    ("reference", "value", "scale", "right"),
    [
        (NAMES, ["cost-plus type", "Fixed-price type."], "", True),
        (NAMES, ["cost-plus type"], "", False),
        (NAMES, ["cost-plus type", "fixed-price type", "other"], "", False),
        (NAMES, ["cost-plus type", "cost-plus type"], "", False),
        (NAMES, "fixed-price type, cost-plus type", "", False),
        (PRICE, "$1,496.50", "million", True),
        (PRICE, "$1,496.5", "", False),
        (PRICE, "1,496.5", "million", True),  # the sign stands in the table's head
        (PRICE, "€1,496.5", "million", False),
        (PRICE, "-$1,496.5", "million", False),
    ],
)
def test_values_that_are_names_or_amounts(judged, pool, reference, value, scale, right):
    answer = json.dumps({"value": value, "scale": scale})
    assert judged(finance.create(None, pool), reference, answer).score == right


@pytest.mark.parametrize(
    "change",
    [
        {"program": "Z9"},
        {"program": ""},
        {"scale": "dozen"},
        {"program": "B2 / (C3 - C3)"},
        {"value": []},
        {"value": [""]},
    ],
)
def test_a_reference_that_gives_no_value_is_the_tasks_fault(judged, pool, change):
    verdict = judged(finance.create(None, pool), {**COSTS, **change}, json.dumps(C))
    assert (verdict.why, verdict.masked) == ("reference-missing", True)


@pytest.mark.parametrize(
    ("asked", "given", "right"),
    [
        ("2023", "FY2023", True),
        ("2023", "fy23", True),
        ("2023", "fiscal year 2023", True),
        ("2023", "twelve months ended December 31, 2023", True),
        ("2023", "fifty-two weeks ended 30 December 2023", True),
        ("2023", "January 1, 2023 to December 31, 2023", True),
        ("2023", "July 1, 2022 - June 30, 2023", True),  # its fiscal year
        ("2023", "December 31, 2023", True),
        ("2023", "Q3 2023", False),
        ("2023", "June 2023", False),
        ("2023", "H1 2023", False),
        ("2023", "9M 2023", False),
        ("2023", "nine months ended September 30, 2023", False),
        ("2023", "2022", False),
        ("2023", "", False),
        ("Q3 2023", "3Q23", True),
        ("Q3 2023", "Q3 '23", True),
        ("Q3 2023", "third quarter of fiscal 2023", True),
        ("Q3 2023", "three months ended September 30, 2023", True),
        ("Q3 2023", "July to September 2023", True),
        ("Q3 2023", "third quarter ended March 31, 2023", True),  # of a year that begins in July
        ("Q3 2023", "Q2 2023", False),
        ("Q3 2023", "three months ended June 30, 2023", False),
        ("Q3 2023", "nine months ended September 30, 2023", False),
        ("Q3 2023", "September 2023", False),
        ("Q3 2023", "2023", False),
        ("three months ended June 30, 2019", "3 months ended June 30, 2019", True),
        ("three months ended June 30, 2019", "quarter ended 2019-06-30", True),
        ("three months ended June 30, 2019", "thirteen weeks ended June 30, 2019", True),
        ("three months ended June 30, 2019", "April 1 to June 30, 2019", True),
        ("three months ended June 30, 2019", "June 30, 2019", True),  # does not say how long
        ("three months ended June 30, 2019", "six months ended June 30, 2019", False),
        ("three months ended June 30, 2019", "half-year ended June 30, 2019", False),
        ("three months ended June 30, 2019", "three months ended June 30, 2018", False),
        ("three months ended June 30, 2019", "three months ended March 31, 2019", False),
        ("three months ended June 30, 2019", "June 2019", False),
        ("three months ended June 30, 2019", "year ended June 30, 2019", False),
        ("three months ended June 30, 2019", "FY2019", False),
        ("June 2019", "Jun. 2019", True),
        ("June 2019", "one month ended June 30, 2019", True),
        ("June 2019", "May 2019", False),
        ("June 30, 2019", "30 June 2019", True),
        ("June 30, 2019", "December 31, 2019", False),
        ("year ended June 30, 2019", "year ended December 31, 2019", False),
        ("H1 2019", "six months ended June 30, 2019", True),
        ("H1 2019", "first half of 2019", True),
        ("H1 2019", "second half of 2019", False),
        ("Plan A", "plan a", True),
        ("Plan A", "plan b", False),
    ],
)
def test_a_value_for_another_period_is_another_value(asked, given, right):
    reference = msgspec.to_builtins(finance.Reference(value="7", decimals=0, period=asked))
    assert finance.check(json.dumps({"value": 7, "period": given}), reference).right is right
    texts = {**reference, "value": ["7"]}
    assert finance.check(json.dumps({"value": ["7"], "period": given}), texts).right is (right or not given)
