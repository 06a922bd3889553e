"""Arithmetic and word problems. The answer is a short line of working that ends in the result, such as "12+7=19".

Level 1: one step with numbers below 50. Level 2: two steps in words. Level 3: several steps with fractions, percents
and units. No tools and no sandbox; the math verifier reads the last result.
"""

# ruff: noqa: E501  (tables with one entry a line)

from __future__ import annotations

import operator
import random
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from msgspec import Struct

from temper.core.protocols import Environment, Resources
from temper.core.task import Case, Limits, Message, Split, Task
from temper.domains.generated import LEVELS, Draft, stream
from temper.rollouts.environments import ChatEnvironment


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

_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_PEOPLE = ("Ann", "Tom", "Ben", "Sam", "Kim", "Max", "Leo", "Eva", "Amy", "Dan")
_THINGS = ("pens", "eggs", "cups", "keys", "cards", "books", "coins", "apples", "stamps", "shells")


def create(config: object = None) -> Arithmetic:
    return Arithmetic()


class Arithmetic:
    """`core.protocols.Domain`."""

    name = "arithmetic"
    levels = LEVELS

    def tasks(self, split: Split, level: int, seed: int = 0) -> Iterator[Task]:
        return stream(self.name, draw, split, level, seed)

    def environment(self, task: Task, resources: Resources) -> Environment:
        return ChatEnvironment(task)

    def verifier(self, task: Task) -> tuple[str, Mapping[str, Any]]:
        return "math", {}

    def gold(self, task: Task) -> tuple[Message, ...]:
        return (Message("assistant", task.reference["answer"]),)

    def cases(self, task: Task) -> Iterator[Case]:
        """The result in other forms, and slips: in the last step, in its form, or in saying more than one result."""
        working = task.reference["answer"]
        terms, _, result = working.rpartition("\n")[2].partition("=")
        value = Fraction(result)
        right = {
            "the result alone": result,
            "the working in LaTeX": f"\\[{working.replace(chr(10), ' ')}\\]\n\\boxed{{{result}}}",
            "a sentence": f"After some thought, the answer is {result}.",
            "a fraction in LaTeX": result
            if value.denominator == 1
            else f"\\boxed{{\\frac{{{value.numerator}}}{{{value.denominator}}}}}",
            "with its name": f"x = {result}",
        }
        wrong = {
            "one more": f"{terms}={value + 1}",
            "the other sign": f"{-value}",
            "a power of ten": f"{value * 10}",
            "a digit more": f"{float(value):.4f}7",
            "two results": f"{result} or {value + 1}",
            "the first number": f"{min({*map(int, re.findall('[0-9]+', terms))} - {value})}",
            "taken back": f"The answer is {result}. No, the answer is {value + 2}.",
        }
        if value.denominator == 1:
            right["a decimal"] = f"{result}.0"
            wrong["not carried out"] = f"{terms}={terms}"
        else:
            right["not reduced"] = f"{value.numerator * 3}/{value.denominator * 3}"
        for right_, forms in ((True, right), (False, wrong)):
            yield from (Case(right=right_, why=why, answer=answer) for why, answer in forms.items())


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
            domain=Arithmetic.name,
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
