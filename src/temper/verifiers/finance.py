"""A figure from a financial table: value, unit, scale, period, and the program over cited cells that computes it.

Reference: {"rows": the table as texts, "program": "(C2 - B2) / B2 * 100", "unit": "%", "scale": "", "period": "2023",
"decimals": 1}. `table_scale` is what the table's numbers are in ("thousand"); `formulas` says which cells are sums of
others ({"B5": "sum(B2:B4)"}), so that both count as the same source. Without a program, "value" is the gold value and
the answer needs no program; a list holds values that are names or amounts with a sign, in any order. The answer:

    {"value": 12.5, "unit": "%", "scale": "", "period": "2023", "program": "(C2 - B2) / B2 * 100"}

The value is compared exactly, up to the decimals that were asked for, after unit and scale are carried out: 1.2 billion
is 1,200 million, and 12.5 % is the plain ratio 0.125, but not 12.5. A value for another period (`checks.periods`) is
another value. A program reads cells (columns are letters, rows are numbers from 1, the header is row 1) with + - * /
( ), sum, average, max and min over ranges such as B2:B5. It has to give what the gold program gives on the table and on
tables with other numbers, so that a number that was read off, or a formula that happens to fit, is no program. A cell's
name alone is one: it cites the cell. Components: value, unit, period, program.
"""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec
from msgspec import Struct

from temper.verifiers import written
from temper.verifiers.checks import facts, periods, units
from temper.verifiers.checks.forms import FormError, Found, read_json

Config = written.Config
_KEYS = {"value", "unit", "scale", "period", "program"}
_OTHER_TABLES = 3
_FACTORS = (Fraction(1), Fraction(100), Fraction(1, 100))  # a program may leave the percent sign to the unit
_CELL = re.compile(r"([A-Z]{1,2})([1-9][0-9]{0,3})")
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[[list[Fraction]], Fraction]] = {
    "sum": lambda v: sum(v, Fraction()), "average": lambda v: sum(v, Fraction()) / len(v), "max": max, "min": min,
}  # fmt: skip

Table = Mapping[str, Fraction]


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    rows: list[list[str]] = []
    program: str = ""
    value: str | list[str] = ""
    unit: str = ""
    scale: str = ""
    period: str = ""
    decimals: int = 2
    table_scale: str = ""
    formulas: dict[str, str] = {}


def gold(reference: Reference) -> str:
    """The right answer as JSON. Raises ValueError or ZeroDivisionError when the reference gives none."""
    if isinstance(reference.value, list):
        if not all(text.strip() for text in reference.value) or not reference.value:
            raise ValueError("an empty value would pass by saying nothing")
        answer: dict[str, Any] = {"value": reference.value}
    else:
        shown = round(_gold_value(msgspec.to_builtins(reference)), reference.decimals)
        answer = {"value": float(shown) if reference.decimals else int(shown)}
    answer |= {name: getattr(reference, name) for name in ("unit", "scale", "period", "program")}
    return msgspec.json.encode({name: part for name, part in answer.items() if part != ""}).decode()


class ProgramError(ValueError):
    """The program cannot be run; the message may be shown to the model."""


def check(text: str, reference: dict[str, Any]) -> Found:
    """Runs in a worker; `reference` as plain data. Raises ProgramError if the gold program does not run."""
    try:
        answer = read_json(text)
        if not isinstance(answer, dict) or not {"value"} <= set(answer) <= _KEYS:
            raise FormError(f"expected an object with value and, where they apply, {', '.join(_KEYS - {'value'})}")
        if isinstance(reference["value"], list):
            return _texts(answer, reference)
        value, unit = _stated(answer)
    except FormError as error:
        return Found(False, str(error), {})
    gold_unit = _unit(reference["unit"])
    gold = _gold_value(reference) * _scale(reference["scale"]) * gold_unit[0]
    close = Fraction(1, 2 * 10 ** reference["decimals"]) * _scale(reference["scale"]) * gold_unit[0]
    found = {
        "value": abs(value - gold) <= close,
        "unit": not reference["unit"] or unit[1] == gold_unit[1],
        "period": not reference["period"] or _of_period(str(answer.get("period", "")), reference),
    }
    reasons = {
        "value": f"{answer['value']!r} {answer.get('scale') or ''} is not the value",
        "unit": f"{answer.get('unit')!r} is not the unit",
        "period": f"{answer.get('period')!r} is not the period",
    }
    if reference["program"]:
        reasons["program"] = _wrong_program(answer.get("program"), reference)
        found["program"] = not reasons["program"]
    why = next((reasons[name] for name, right in found.items() if not right), "")
    return Found(not why, why, {name: float(right) for name, right in found.items()})


def _gold_value(reference: dict[str, Any]) -> Fraction:
    """In the reference's unit and scale."""
    if reference["value"]:
        return Fraction(reference["value"])
    scale = Fraction(_scale(reference["table_scale"]), _scale(reference["scale"]))
    return run(reference["program"], cells(reference["rows"])) * scale


def cells(rows: Sequence[Sequence[str]]) -> dict[str, Fraction]:
    """The numbers of a table by the names of their cells."""
    found = {}
    for n, row in enumerate(rows, 1):
        for column, text in enumerate(row):
            numbers = list(facts.amounts(text))
            if len(numbers) == 1 and not re.search(r"[A-Za-z]{2}", text):
                found[f"{chr(65 + column)}{n}"] = numbers[0].value
    return found


def run(program: str, table: Table) -> Fraction:
    """Raises ProgramError."""
    if len(program) > 500:
        raise ProgramError("the program is too long")
    source = re.sub(r"([A-Z]+[0-9]+)\s*:\s*([A-Z]+[0-9]+)", r"range(\1, \2)", program.strip().removeprefix("="))
    try:
        value = _evaluate(ast.parse(source, mode="eval").body, table)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ProgramError(f"the program {program[:80]!r} cannot be read: {error}") from None
    except ZeroDivisionError:
        raise ProgramError("the program divides by zero") from None
    if isinstance(value, list):
        raise ProgramError("the program gives a range")
    return value


def _texts(answer: dict[str, Any], reference: dict[str, Any]) -> Found:
    """Several values, or such as are names or amounts with a sign: all of them, in any order, no others."""
    if answer.get("period") and reference["period"] and not _of_period(str(answer["period"]), reference):
        return Found(False, f"{answer['period']!r} is not the period", {"period": 0.0})
    given = answer["value"] if isinstance(answer["value"], list) else [answer["value"]]
    left = [_carried_out(one, answer) for one in given]
    for gold in reference["value"]:
        wanted = _carried_out(gold, reference)
        found = next((one for one in left if _alike(wanted, one)), None)
        if found is None:
            return Found(False, f"{str(given)[:80]} is not the value", {"value": 0.0})
        left.remove(found)
    why = f"{str(given)[:80]} is more than the value" if left else ""
    return Found(not why, why, {"value": float(not left)})


def _of_period(text: str, reference: dict[str, Any]) -> bool:
    return periods.same(periods.read(text), periods.read(reference["period"]))


def _carried_out(value: Any, told: dict[str, Any]) -> tuple[Fraction | str, tuple[Any, ...]]:
    """An amount in base units and its dimension, or a text in its plain form. Raises FormError for a wrong scale."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FormError("expected values that are numbers or texts")
    scale, unit = _scale(str(told.get("scale") or "")), _unit(str(told.get("unit") or ""))
    found = facts.amount(value)
    if found is None:
        return facts.plain(str(value)), (scale, unit)
    if found.dimension == ("%",):
        return found.value / 100, ()
    return found.value * scale * unit[0], found.dimension


def _alike(wanted: tuple[Any, tuple[Any, ...]], given: tuple[Any, tuple[Any, ...]]) -> bool:
    """A unit that only one side gives is left out; that of a table stands in its head."""
    return wanted[0] == given[0] and (wanted[1] == given[1] or () in (wanted[1], given[1]))


def _stated(answer: dict[str, Any]) -> tuple[Fraction, tuple[Fraction, Any]]:
    """The value in base units, and (factor, name) of its unit, which may stand beside the number. Raises FormError."""
    value = answer["value"]
    (value,) = value if isinstance(value, list) and len(value) == 1 else [value]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise FormError("expected a number as the value")
    found = facts.amount(value)
    if found is None or (found.dimension and "unit" in answer):
        raise FormError(f"{str(value)[:80]!r} is no plain number")
    unit = _unit(str(answer.get("unit") or ""))
    if found.dimension == ("%",):
        unit = _unit("%")
    elif found.dimension:
        unit = (Fraction(1), found.dimension)
    return found.value * _scale(str(answer.get("scale") or "")) * unit[0], unit


def _unit(text: str) -> tuple[Fraction, Any]:
    """(factor, what tells it from other units). A percentage is a plain number with the factor 1/100."""
    text = text.strip()
    if text.casefold() in ("%", "percent", "per cent", "pct"):
        return Fraction(1, 100), ""
    known = units.named(text)
    return (known.factor, known.dimension) if known else (Fraction(1), text.casefold().removesuffix("s"))


def _scale(text: str) -> int:
    word = text.strip().casefold().removesuffix("s")
    if word and word not in facts.SCALES:
        raise FormError(f"{text[:40]!r} is no scale: expected one of {', '.join(facts.SCALES)}, or nothing")
    return facts.SCALES.get(word, 1)


def _wrong_program(given: Any, reference: dict[str, Any]) -> str:
    """Why the answer's program is wrong, "" when it is right."""
    if not isinstance(given, str) or not given.strip():
        return "there is no program that cites the cells"
    ratios = set()
    for table in _tables(reference):
        wanted = run(reference["program"], table)
        try:
            value = run(given, table)
        except ProgramError as error:
            return str(error)
        ratios.add(value / wanted if wanted else Fraction(value == wanted))
    fits = len(ratios) == 1 and ratios <= set(_FACTORS)
    return "" if fits else "the program does not compute the answer from the right cells"


def _tables(reference: dict[str, Any]) -> list[dict[str, Fraction]]:
    """The table and others like it: other numbers, and the same sums where cells are sums of cells."""
    first = cells(reference["rows"])
    tables = [first]
    for seed in range(_OTHER_TABLES):
        rng = random.Random(seed)
        other = {name: value * rng.randint(101, 999) / 500 + rng.randint(1, 99) for name, value in first.items()}
        for name, formula in reference["formulas"].items():
            other[name] = run(formula, other)
        tables.append(other)
    return tables


def _evaluate(node: ast.expr, table: Table) -> Any:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return Fraction(str(value))
        case ast.Name(id=name) if name in table:
            return table[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand) if isinstance(value := _evaluate(operand, table), Fraction):
            return -value
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
            a, b = _evaluate(left, table), _evaluate(right, table)
            if isinstance(a, Fraction) and isinstance(b, Fraction):
                return _OPERATORS[type(op)](a, b)
        case ast.Call(func=ast.Name(id="range"), args=[ast.Name(id=first), ast.Name(id=last)], keywords=[]):
            return _range(first, last, table)
        case ast.Call(func=ast.Name(id=name), args=[*arguments], keywords=[]) if name in _FUNCTIONS and arguments:
            values = [_evaluate(argument, table) for argument in arguments]
            return _FUNCTIONS[name]([v for value in values for v in (value if isinstance(value, list) else [value])])
    raise ValueError(f"{ast.unparse(node)[:60]!r} is no number of the table, and no sum, average, max or min")


def _range(first: str, last: str, table: Table) -> list[Fraction]:
    ends = _CELL.fullmatch(first), _CELL.fullmatch(last)
    if not all(ends):
        raise ValueError(f"{first}:{last} is no range of cells")
    (c0, r0), (c1, r1) = ((end[1], int(end[2])) for end in ends if end)
    inside = [
        v for name, v in table.items() if (c := _CELL.fullmatch(name)) and c0 <= c[1] <= c1 and r0 <= int(c[2]) <= r1
    ]
    if not inside:
        raise ValueError(f"{first}:{last} holds no numbers")
    return inside


create = written.checked(
    __name__, Config, Reference, gold, lambda reference, task: "" if gold(reference) else "no answer"
)
