"""Arithmetic and word problems. The answer is a short line of working that ends in the result, such as "12+7=19".

Level 1: one step with numbers below 50. Level 2: two steps in words. Level 3: several steps with fractions, percents
and units. No tools and no sandbox; the math verifier reads the last result.
"""

# ruff: noqa: E501  (tables with one entry a line)

from __future__ import annotations

import operator
import random
import re
from collections.abc import Mapping
from fractions import Fraction

from msgspec import Struct

from temper.core.task import Limits, Message, Task
from temper.domains.generated import Draft
from temper.domains.written import Answers, Written


class Template(Struct, frozen=True):
    """A question over numbers a, b, c, d drawn from `ranges`, and its steps, each read from left to right.

    A step may use earlier results as r1, r2, r3.
    """

    question: str
    steps: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...]


_SUM, _TABLE, _SHARE = ((2, 49), (2, 49)), ((2, 12), (2, 9)), ((4, 81), (2, 9))
_SMALL, _PACKS, _TENS = ((2, 20), (2, 20), (2, 20)), ((2, 40), (2, 9), (2, 9)), (10, 90)

TEMPLATES: dict[int, tuple[Template, ...]] = {
    1: (
        Template("{a} + {b} = ?", ("a + b",), _SUM),
        Template("{a} - {b} = ?", ("a - b",), _SUM),
        Template("{a} * {b} = ?", ("a * b",), _TABLE),
        Template("{a} + {b} - {c} = ?", ("a + b - c",), _SMALL),
        Template("{who} has {a} {things} and buys {b}. How many now?", ("a + b",), _SUM),
        Template("{a} red and {b} blue {things}. How many in all?", ("a + b",), _SUM),
        Template("{who} has {a} {things} and sells {b}. How many are left?", ("a - b",), _SUM),
        Template("{who} has {a} {things}, {other} has {b}. How many more has {who}?", ("a - b",), _SUM),
        Template("{a} bags with {b} {things} each. How many {things}?", ("a * b",), _TABLE),
        Template("{who} shares {a} {things} among {b} friends. How many each?", ("a / b",), _SHARE),
    ),
    2: (
        Template("{who} has {a} {things} and buys {b} bags of {c}. How many now?", ("b * c", "a + r1"), _PACKS),
        Template("{b} boxes hold {c} {things} each; {a} are sold. How many are left?", ("b * c", "r1 - a"), _PACKS),
        Template("{who} pays {b} {things} at {c} coins each with {a} coins. Change?", ("b * c", "a - r1"), _PACKS),
        Template("{who} has {a} {things}, {other} {b} times as many. Together?", ("a * b", "a + r1"), _TABLE),
        Template("{who} has {a} {things}, {other} {b} fewer. Together?", ("a - b", "a + r1"), _SUM),
        Template("{a} and {b} {things} are shared among {c}. How many each?", ("a + b", "r1 / c"), _SMALL),
        Template("{who} makes {b} {things} a day for {c} days and eats {a}. Left?", ("b * c", "r1 - a"), _PACKS),
        Template("({a} + {b}) * {c} = ?", ("a + b", "r1 * c"), ((2, 12), (2, 12), (2, 9))),
        Template("{a} - {b} * {c} = ?", ("b * c", "a - r1"), ((20, 90), (2, 9), (2, 9))),
    ),
    3: (
        Template("{a}/{b} + {c}/{d} = ? (a fraction)", ("a * d", "c * b", "b * d", "r1 + r2", "r4 / r3"), ((1, 9),) * 4),
        Template("{a}/{b} of {c} {things} are sold. How many are left?", ("c / b", "r1 * a", "c - r2"), ((1, 8), (2, 9), _TENS)),
        Template("{a}% of {b} {things} are red; {c} more red ones come. How many red?", ("a * b", "r1 / 100", "r2 + c"), ((5, 95), (20, 400), (2, 40))),
        Template("A train goes {a} km/h for {b} minutes. How many metres?", ("a * 1000", "r1 / 60", "r2 * b"), ((12, 180), (2, 55))),
        Template("{who} walks {a} h {b} min, {other} {c} min. How many minutes in all?", ("a * 60", "r1 + b", "r2 + c"), ((1, 9), (5, 55), (10, 90))),
        Template("{a} kg of flour fill bags of {b} g; {c} are sold. How many bags are left?", ("a * 1000", "r1 / b", "r2 - c"), ((1, 9), (20, 500), (2, 30))),
        Template("The mean of {a}, {b}, {c} and {d}? (a fraction if need be)", ("a + b + c + d", "r1 / 4"), ((2, 60),) * 4),
        Template("A price of {a} falls by {b}%, then rises by {c}. Now?", ("a * b", "r1 / 100", "a - r2", "r3 + c"), ((20, 400), (5, 95), (2, 40))),
    ),
}  # fmt: skip

_NUMBER = re.compile(r"-?\d+(?:/[1-9]\d*|\.\d+)?")
_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_PEOPLE = ("Ann", "Tom", "Ben", "Sam", "Kim", "Max", "Leo", "Eva", "Amy", "Dan")
_THINGS = ("pens", "eggs", "cups", "keys", "cards", "books", "coins", "apples", "stamps", "shells")


def create(config: object = None) -> Written:
    return Written("arithmetic", "math", draw, lambda task: task.reference["answer"], right, wrong, second)


def right(task: Task) -> Answers:
    """The result in other forms."""
    working, _, value = _read(task)
    result = str(value)
    yield "the result alone", result
    yield "the working in LaTeX", f"\\[{working.replace(chr(10), ' ')}\\]\n\\boxed{{{result}}}"
    yield "a sentence", f"After some thought, the answer is {result}."
    yield "with its name", f"x = {result}"
    if value.denominator == 1:
        yield "a decimal", f"{result}.0"
    else:
        yield "a fraction in LaTeX", f"\\boxed{{\\frac{{{value.numerator}}}{{{value.denominator}}}}}"
        yield "not reduced", f"{value.numerator * 3}/{value.denominator * 3}"


def wrong(task: Task) -> Answers:
    """Slips: in the last step, in its form, or in saying more than one result."""
    _, terms, value = _read(task)
    yield "one more", f"{terms}={value + 1}"
    yield "the other sign", f"{-value}"
    yield "a power of ten", f"{value * 10}"
    yield "a digit more", f"{float(value):.4f}7"
    yield "two results", f"{value} or {value + 1}"
    yield "the first number", f"{min({*map(int, re.findall('[0-9]+', terms))} - {value})}"
    yield "taken back", f"The answer is {value}. No, the answer is {value + 2}."
    if value.denominator == 1:
        yield "not carried out", f"{terms}={terms}"


def second(task: Task, answer: str) -> bool | None:
    """The last number that is written is the last one of the reference. LaTeX is left open."""
    if "\\" in answer:
        return None
    said, gold = (_NUMBER.findall(text) for text in (answer, task.reference["answer"]))
    return bool(said and gold) and Fraction(said[-1]) == Fraction(gold[-1])


def _read(task: Task) -> tuple[str, str, Fraction]:
    """The working, the left side of its last line, and the result."""
    working = task.reference["answer"]
    terms, _, result = working.rpartition("\n")[2].partition("=")
    return working, terms, Fraction(result)


def draw(rng: random.Random, level: int) -> Draft:
    """A question whose every step is whole and positive (at level 3 the last may be a fraction).

    The answer is none of the question's numbers, so that repeating one of them is never right.
    """
    while True:
        template = rng.choice(TEMPLATES[level])
        numbers = {name: rng.randint(*bounds) for name, bounds in zip("abcd", template.ranges, strict=False)}
        lines = _work(template.steps, numbers)
        *steps, last = [value for _, value in lines]
        whole = all(value.denominator == 1 for value in (steps if level == 3 else [*steps, last]))
        if whole and all(value > 0 for value in (*steps, last)) and last not in numbers.values():
            break
    words = dict(zip(("who", "other"), rng.sample(_PEOPLE, 2), strict=True), things=rng.choice(_THINGS))
    question = template.question.format(**words, **numbers)
    working = "\n".join(f"{''.join(terms)}={value}" for terms, value in lines)

    def build(rng: random.Random) -> Task:
        return Task(
            id="",
            domain="arithmetic",
            messages=(Message("user", question),),
            limits=Limits(turns=1, tokens=24 * level, turn_tokens=24 * level),
            reference={"answer": working},
        )

    # The calculation without its words, and the same for a+b and b+a.
    identity = ";".join(f"{' '.join(sorted(terms))}={value}" for terms, value in lines)
    return Draft(identity, question, build)


def _work(steps: tuple[str, ...], numbers: Mapping[str, int]) -> list[tuple[list[str], Fraction]]:
    """Each step as the terms that are written down, with its exact value."""
    known = {name: Fraction(n) for name, n in numbers.items()}
    lines = []
    for n, step in enumerate(steps, 1):
        terms = [known[t] if t in known else t if t in _OPERATORS else Fraction(t) for t in step.split()]
        value = terms[0]
        for op, term in zip(terms[1::2], terms[2::2], strict=True):
            value = _OPERATORS[op](value, term)
        known[f"r{n}"] = value
        lines.append(([t if isinstance(t, str) else str(t) for t in terms], value))
    return lines
