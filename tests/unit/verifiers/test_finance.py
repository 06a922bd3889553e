"""Figures from tables. The table and its results were worked out by hand."""

from __future__ import annotations

import json

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
    ("text", "period"),
    [
        ("Q3 2023", ("2023", "3")), ("3Q23", ("2023", "3")), ("third quarter of 2023", ("2023", "3")),
        ("FY2023", ("2023", "")), ("fiscal year 2023", ("2023", "")), ("H1", ("h1", "")),
    ],
)  # fmt: skip
def test_periods(text, period):
    assert finance.period(text) == period
