"""Questions about a small table that stands in the prompt; the answer is a value or a list of them.

Level 1: four rows; look a value up, count, find the largest. Level 2: six rows; sums, differences, lists, groups.
Level 3: quantities in mixed units and dates; lists under two conditions, totals in a given unit, what came when. No
tools; the last line of the answer counts, with items separated by "|".
"""

# ruff: noqa: SIM905  (words in one string)

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta

from msgspec import Struct

from temper.core.task import Limits, Message, Task
from temper.domains.generated import Draft
from temper.domains.written import Answers, Written

_MONTHS = "January February March April May June July August September October November December".split()
_NAMES = "Ann Tom Ben Sam Kim Max Leo Eva Amy Dan Joy Ray Ivy Guy Ron Sue".split()
_THEMES = (  # what a row is, the column with few values, and a number with its unit
    ("rider", "team", "Red Blue Gold", "points", ""), ("book", "genre", "crime drama poem", "pages", ""),
    ("runner", "club", "Ajax Nova Orion", "time", "min"), ("boat", "port", "Rome Oslo Cork", "length", "m"),
    ("parcel", "city", "Paris Bonn York", "weight", "kg"), ("trail", "region", "north south west", "length", "km"),
    ("guest", "floor", "first second third", "nights", ""), ("meal", "taste", "sweet sour hot", "price", "$"),
)  # fmt: skip


def create(config: object = None) -> Written:
    return Written("table_questions", "tables", draw, gold, right, wrong, second)


def gold(task: Task) -> str:
    return " | ".join(task.reference["answer"])


def right(task: Task) -> Answers:
    """The answer in other words."""
    items: list[str] = task.reference["answer"]
    plain = gold(task)
    yield "after working", f"I look at the rows one by one.\n\n{plain}"
    yield "after 'answer:'", f"There are some rows that fit.\n**Answer:** {plain}"
    yield "with a full stop", f"{plain}."
    yield "in other words", " | ".join(map(_reworded, items))
    yield "in capitals", plain.upper()
    if len(items) > 1:
        yield "in another order", " | ".join(items[::-1])
        yield "with commas", ", ".join(items)
        yield "with 'and'", ", ".join(items[:-1]) + " and " + items[-1]
        yield "one a line", "Answer:\n" + "\n".join(f"- {item}" for item in items)


def wrong(task: Task) -> Answers:
    """One item, digit, unit or day changed; or more said than one answer."""
    items: list[str] = task.reference["answer"]
    plain = gold(task)
    yield "an item more", f"{plain} | {next(name for name in _NAMES if name not in items)}"
    yield "an alternative", f"{plain} or {next(name for name in _NAMES if name not in items)}"
    yield "denied", f"not {plain}"
    yield "the whole table", task.messages[0].content
    yield "an item changed", " | ".join([_changed(items[0]), *items[1:]])
    yield "another item changed", " | ".join([*items[:-1], _changed(items[-1], 10)])
    yield "nothing", "none"
    if len(items) > 1:
        yield "an item less", " | ".join(items[1:])
        yield "an item twice", " | ".join([*items, items[0]])


def second(task: Task, answer: str) -> bool | None:
    """The items as they stand, alone on the last line, are right; where a name of them is nowhere, or all that is said
    is a list of other names or one other number, it is wrong."""
    items = [item.casefold() for item in task.reference["answer"]]
    lines = [line.strip(" .*").casefold() for line in answer.split("\n") if line.strip()]
    said = [part.strip() for part in lines[-1].rpartition("answer:")[2].split("|")] if lines else []
    if sorted(said) == sorted(items):
        return True
    if not said:
        return False
    known = {name.casefold() for name in _NAMES}
    plain = all(part.isdecimal() or part in known for part in said)
    there = re.findall(r"[a-z]+", answer.casefold())
    lacking = [item for item in items if item.isalpha() and item not in there]
    return False if lacking or (plain and all(item.isdecimal() or item in known for item in items)) else None


class Row(Struct, frozen=True):
    """`size` is in the column's unit; `cell` shows it, at level 3 in a smaller unit now and then."""

    name: str
    kind: str
    size: int
    cell: str
    day: date


class Table(Struct, frozen=True):
    """`what` a row is, the names of its columns, and the unit of its number."""

    what: str
    kind: str
    number: str
    unit: str
    rows: tuple[Row, ...]


Answer = tuple[str, list[str]]  # a question and its answer, empty when the table has none that is unique
Question = Callable[[random.Random, Table], Answer]


def _most(rng: random.Random, table: Table) -> Answer:
    which, best = rng.choice([("highest", max), ("lowest", min)])
    return f"Which {table.what} has the {which} {table.number}?", [best(table.rows, key=lambda row: row.size).name]


def _value(rng: random.Random, table: Table) -> Answer:
    row = rng.choice(table.rows)
    return f"What {table.number} has {row.name}?", [row.cell]


def _count(rng: random.Random, table: Table) -> Answer:
    kind = rng.choice(table.rows).kind
    return f"How many have {table.kind} {kind}?", [str(sum(row.kind == kind for row in table.rows))]


def _total(rng: random.Random, table: Table) -> Answer:
    kind = rng.choice(table.rows).kind
    rows = [row for row in table.rows if row.kind == kind]
    return f"Total {table.number} of those with {table.kind} {kind}?", [
        _quantity(sum(row.size for row in rows), table.unit)
    ]


def _spread(rng: random.Random, table: Table) -> Answer:
    sizes = [row.size for row in table.rows]
    return f"Difference between the highest and the lowest {table.number}?", [
        _quantity(max(sizes) - min(sizes), table.unit)
    ]


def _over(rng: random.Random, table: Table) -> Answer:
    level = rng.choice(table.rows).size
    names = [row.name for row in table.rows if row.size > level]
    return f"Which {table.what}s have a {table.number} over {_quantity(level, table.unit)}? Separate by |.", names


def _group(rng: random.Random, table: Table) -> Answer:
    (kind, most), *rest = Counter(row.kind for row in table.rows).most_common()
    return f"Which {table.kind} occurs most often?", [kind] if all(n < most for _, n in rest) else []


def _both(rng: random.Random, table: Table) -> Answer:
    kind, level = rng.choice(table.rows).kind, rng.choice(table.rows).size
    names = [row.name for row in table.rows if row.kind == kind and row.size <= level]
    return (
        f"Which {table.what}s with {table.kind} {kind} have at most {_quantity(level, table.unit)}? Separate by |.",
        names,
    )


def _when(rng: random.Random, table: Table) -> Answer:
    which, best = rng.choice([("first", min), ("last", max)])
    kind = rng.choice(table.rows).kind
    day = best(row.day for row in table.rows if row.kind == kind)
    return f"On what day was the {which} one with {table.kind} {kind}?", [_day(day)]


def _before(rng: random.Random, table: Table) -> Answer:
    day = rng.choice(table.rows).day
    names = [row.name for row in table.rows if row.day < day]
    return f"Which {table.what}s came before {_day(day)}? Separate by |.", names


_QUESTIONS: dict[int, tuple[Question, ...]] = {
    1: (_most, _value, _count),
    2: (_total, _spread, _over, _group, _most),
    3: (_both, _when, _before, _total, _spread, _most),
}
_SMALLER = {"km": ("m", 1000), "m": ("cm", 100), "kg": ("g", 1000), "min": ("s", 60)}


def draw(rng: random.Random, level: int) -> Draft:
    while True:
        table = _table(rng, level)
        number = rng.randrange(len(_QUESTIONS[level]))
        question, answer = _QUESTIONS[level][number](rng, table)
        if answer and len(answer) < len(table.rows):
            break
    columns = [table.what, table.kind, table.number, *(["day"] if level == 3 else [])]
    lines = [
        ",".join([row.name, row.kind, row.cell, *([row.day.isoformat()] if level == 3 else [])]) for row in table.rows
    ]
    asked = "\n".join([",".join(columns), *lines, question])

    def build(rng: random.Random) -> Task:
        return Task(
            id="",
            domain="table_questions",
            messages=(Message("user", asked),),
            limits=Limits(turns=1, tokens=64 * level, turn_tokens=64 * level),
            reference={"answer": answer},
        )

    return Draft(asked, asked, build)


def _table(rng: random.Random, level: int) -> Table:
    what, kind, kinds, number, unit = rng.choice(_THEMES)
    size = {1: 4, 2: 6, 3: 7}[level]
    start = date(rng.randint(1990, 2024), rng.randint(1, 12), rng.randint(1, 28))
    days = [start + timedelta(days=n) for n in rng.sample(range(400), size)]
    rows = []
    for name, n, day in zip(rng.sample(_NAMES, size), rng.sample(range(12, 99), size), days, strict=True):
        cell = _quantity(n, unit)
        if level == 3 and unit in _SMALLER and rng.random() < 0.4:
            smaller, factor = _SMALLER[unit]
            cell = _quantity(n * factor, smaller)
        rows.append(Row(name, rng.choice(kinds.split()), n, cell, day))
    return Table(what, kind, number, unit, tuple(rows))


def _quantity(value: int, unit: str) -> str:
    return f"${value}" if unit == "$" else f"{value} {unit}".strip()


def _day(day: date) -> str:
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"


def _reworded(item: str) -> str:
    """The same thing as other people write it."""
    number, _, unit = item.partition(" ")
    if unit.partition(" ")[0] in _MONTHS:
        month, year = unit.split()
        return f"{month} {number}, {year}"
    if item.startswith("$"):
        return f"{item[1:]}.00 dollars"
    if number.isdigit():
        return f"{int(number) * _SMALLER[unit][1]} {_SMALLER[unit][0]}" if unit in _SMALLER else f"{item}.0"
    return f"the {item.lower()}"


def _changed(item: str, by: int = 1) -> str:
    number, _, unit = item.partition(" ")
    if item.startswith("$"):
        return f"${int(item[1:]) + by}"
    if number.isdigit():
        return f"{int(number) + by if unit.partition(' ')[0] not in _MONTHS else int(number) % 28 + 1} {unit}".strip()
    return next(name for name in _NAMES[by % 3 :] if name != item)
