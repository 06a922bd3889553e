"""Questions on a company's figures: value, unit, scale and period, with the program over the cells that gives the value.

Level 1: a figure or a difference. Level 2: a change in percent, a share, a ratio. Level 3: a mean over the years, a change
of a margin, a figure in another scale. Sums in the table are sums of its rows, so that a program may use either.
"""

# ruff: noqa: E501  (tables with one entry a line)

from __future__ import annotations

import json
import random
import re
from fractions import Fraction
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.task import Limits, Message, Task
from temper.domains.generated import Draft
from temper.domains.written import Answers, Written
from temper.verifiers import finance

NAME = "finance"
_FORM = (
    'Answer with one JSON object: {"value": number, "unit": ..., "scale": ..., "period": ..., "program": ...}. '
    "The program computes the value from cells, such as (C2 - B2) / B2 * 100."
)
_COMPANIES = ("Alder", "Birch", "Corvo", "Delta", "Ember", "Fjord", "Gable", "Helio", "Ionic", "Juno", "Krill", "Lumen")
_UNITS = ("USD", "EUR", "GBP")
_COSTS = ("Materials", "Wages", "Rent", "Energy", "Transport", "Insurance", "Research", "Marketing")


class Kind(Struct, frozen=True):
    """A question and its program; {a} and {b} are columns, earlier first, {r} and {s} rows, {n} row {r}'s name."""

    ask: str
    program: str
    unit: str = ""  # "" stands for the table's currency
    other_scale: bool = False
    decimals: int = 0


KINDS: dict[int, tuple[Kind, ...]] = {
    1: (
        Kind("What was {n} in {y}?", "{b}{r}"),
        Kind("By how much did {n} change from {x} to {y}?", "{b}{r} - {a}{r}"),
        Kind("By how much did {n} exceed {m} in {y}? (negative if it did not)", "{b}{r} - {b}{s}"),
    ),
    2: (
        Kind("By what percentage did {n} change from {x} to {y}? One decimal.", "({b}{r} - {a}{r}) / {a}{r} * 100", "%", decimals=1),
        Kind("What percentage of revenue was {n} in {y}? One decimal.", "{b}{r} / {b}2 * 100", "%", decimals=1),
        Kind("What was the ratio of {n} to {m} in {y}? Two decimals.", "{b}{r} / {b}{s}", "times", decimals=2),
    ),
    3: (
        Kind("What was the mean of {n} over all years? One decimal.", "average(B{r}:{z}{r})", decimals=1),
        Kind("What was {n} in {y}, in {o}? Three decimals.", "{b}{r}", other_scale=True, decimals=3),
        Kind("By how many percentage points did the share of {n} in revenue change from {x} to {y}? One decimal.", "{b}{r} / {b}2 * 100 - {a}{r} / {a}2 * 100", "%", decimals=1),
        Kind("What were {n} and {m} together in {y} as a percentage of revenue? One decimal.", "({b}{r} + {b}{s}) / {b}2 * 100", "%", decimals=1),
    ),
}  # fmt: skip
_UP = {"thousand": "million", "million": "billion"}


def create(config: object = None) -> Written:
    return Written(NAME, "finance", draw, gold, right, wrong, second)


def gold(task: Task) -> str:
    return finance.gold(msgspec.convert(task.reference, finance.Reference))


def draw(rng: random.Random, level: int) -> Draft:
    years = [rng.randint(2012, 2024) + n for n in (0,)]
    years += [years[0] + n for n in range(1, {1: 2, 2: 3, 3: 4}[level])]
    costs = rng.sample(_COSTS, {1: 2, 2: 3, 3: 5}[level])
    unit, scale = rng.choice(_UNITS), rng.choice(list(_UP))
    rows, formulas = _table(rng, years, costs, f"{unit} {scale}")
    kind = rng.choice(KINDS[level])
    first, second = rng.sample(range(3, 3 + len(costs)), 2)
    a, b = sorted(rng.sample(range(len(years)), 2))
    place = {
        "a": chr(66 + a), "b": chr(66 + b), "z": chr(65 + len(years)), "r": first, "s": second, "n": rows[first - 1][0].lower(),
        "m": rows[second - 1][0].lower(), "x": years[a], "y": years[b], "o": f"{_UP[scale]} {unit}",
    }  # fmt: skip
    over = "over all years" in kind.ask
    reference = {
        "rows": rows, "formulas": formulas, "program": kind.program.format(**place), "decimals": kind.decimals, "unit": kind.unit or unit,
        "table_scale": "" if kind.unit else scale, "scale": "" if kind.unit else _UP[scale] if kind.other_scale else scale,
        "period": "" if over else str(years[b]),
    }  # fmt: skip
    table = "\n".join(f"{n} | " + " | ".join(row) for n, row in enumerate(rows, 1))
    letters = " | ".join(chr(65 + n) for n in range(len(years) + 1))
    ask = kind.ask.format(**place)
    prompt = f"{rng.choice(_COMPANIES)} Group\n  | {letters}\n{table}\n\n{ask} {_FORM}"

    def build(rng: random.Random) -> Task:
        return Task(
            id="",
            domain=NAME,
            messages=(Message("user", prompt),),
            limits=Limits(turns=1, tokens=160, turn_tokens=160),
            reference=reference,
        )

    used = sorted(rows[int(n) - 1][ord(c) - 65] for c, n in re.findall(r"([A-Z])([0-9]+)", reference["program"]))
    return Draft(f"{kind.ask} {' '.join(used)}", prompt, build)


def _table(rng: random.Random, years: list[int], costs: list[str], head: str) -> tuple[list[list[str]], dict[str, str]]:
    """Row 2 is revenue, then the costs, their total, and what remains. Costs stand as positive numbers."""
    last = 2 + len(costs)
    spent = [[rng.randint(12, 900) for _ in years] for _ in costs]
    total = [sum(column) for column in zip(*spent, strict=True)]
    earned = [t + rng.randint(-t // 5, t) for t in total]
    body = [("Revenue", earned), *zip(costs, spent, strict=True), ("Total costs", total)]
    body.append(("Profit", [e - t for e, t in zip(earned, total, strict=True)]))
    rows = [[head, *map(str, years)]]
    rows += [[name, *(f"({-n:,})" if n < 0 else f"{n:,}" for n in numbers)] for name, numbers in body]
    formulas = {}
    for n in range(len(years)):
        c = chr(66 + n)
        formulas[f"{c}{last + 1}"] = f"sum({c}3:{c}{last})"
        formulas[f"{c}{last + 2}"] = f"{c}2 - {c}{last + 1}"
    return rows, formulas


def right(task: Task) -> Answers:
    answer = json.loads(gold(task))
    program, unit = answer["program"], answer["unit"]
    yield "indented", json.dumps(answer, indent=1)
    yield "the value as text", json.dumps({**answer, "value": f"{answer['value']:,}"})
    yield "a program in brackets", json.dumps({**answer, "program": f"({program}) + 0"})
    yield "a formula as in a spreadsheet", json.dumps({**answer, "program": f"={program}"})
    if "period" in answer:
        yield "a fiscal year", json.dumps({**answer, "period": f"FY{answer['period']}"})
        yield "the year by its end", json.dumps({**answer, "period": f"year ended December 31, {answer['period']}"})
    if unit == "%":
        plain = {**answer, "value": float(Fraction(str(answer["value"])) / 100), "unit": ""}
        yield "a plain ratio", json.dumps({**plain, "program": f"({program}) / 100"})
    elif unit != "times":
        yield "all digits", json.dumps({**answer, "value": _scaled(answer), "scale": ""})
        yield "the unit's sign", json.dumps({**answer, "unit": {"USD": "$", "EUR": "€", "GBP": "£"}[unit]})
    if task.reference["program"].startswith("average"):
        cells = [f"{chr(66 + n)}{re.search(r'[0-9]+', program)[0]}" for n in range(len(task.reference["rows"][0]) - 1)]
        yield "a mean written out", json.dumps({**answer, "program": f"({' + '.join(cells)}) / {len(cells)}"})


def wrong(task: Task) -> Answers:
    answer = json.loads(gold(task))
    value, unit = Fraction(str(answer["value"])), answer["unit"]
    changes: dict[str, dict[str, Any]] = {
        "a little off": {"value": float(value + Fraction(2, 10 ** task.reference["decimals"]))},
        "ten times": {"value": float(value * 10 + 1)},
        "the other sign": {"value": float(-value or 1)},
        "another unit": {"unit": "EUR" if unit != "EUR" else "USD"},
        "the number as its own program": {"program": str(answer["value"])},
        "no program": {"program": ""},
        "a cell from another row": {"program": re.sub(r"([A-Z])([0-9]+)", lambda m: f"{m[1]}{int(m[2]) % 4 + 2}", answer["program"])},
        "a period more": {"period": "2031"} if "period" in answer else {"value": float(value + 3)},
    }  # fmt: skip
    if "period" in answer:
        changes |= {
            "a quarter of it": {"period": f"Q4 {answer['period']}"},
            "a month of it": {"period": f"December {answer['period']}"},
        }
    if "scale" in answer:
        changes |= {"the scale left out": {"scale": ""}, "another scale": {"scale": "trillion"}}
    if unit == "%":
        changes["a ratio called percent"] = {"value": float(value / 100) if value else 1}
    for why, change in changes.items():
        yield why, json.dumps({**answer, **change})
    yield "the value alone", str(answer["value"])
    yield "words around it", f"The answer is {json.dumps(answer)}"


def second(task: Task, answer: str) -> bool | None:
    """The gold answer's parts as text, the value to its last digit; another number in the same terms is wrong."""
    known = json.loads(gold(task))
    try:
        said = json.loads(answer)
    except ValueError:
        return None if "```" in answer else False
    if not isinstance(said, dict) or "value" not in said or not said.get("program"):
        return False
    if any(str(said.get(name, "")) != str(known.get(name, "")) for name in ("unit", "scale", "period")):
        return None
    if (
        not isinstance(said["value"], int | float)
        or abs(said["value"] - known["value"]) > 1.5 * 10 ** -task.reference["decimals"]
    ):
        return None if isinstance(said["value"], str) else False
    same = str(said["program"]).replace(" ", "") == known["program"].replace(" ", "")
    return True if same and said["value"] == known["value"] else None


def _scaled(answer: dict[str, Any]) -> int | float:
    whole = Fraction(str(answer["value"])) * {"thousand": 10**3, "million": 10**6, "billion": 10**9}[answer["scale"]]
    return int(whole) if whole.denominator == 1 else float(whole)
