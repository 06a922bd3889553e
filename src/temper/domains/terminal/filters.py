"""What may be asked of a table's lines: in words, as a command, and as Python, from which the expected file is made.

A table has a name, a kind, and two numbers in its columns; names, and the numbers of a column, are distinct, so that
no order is left open. Filters of `KEEP` leave a table, those of `FINISH` need not, and `TOGETHER` are pipelines of
their own. Words in capitals (`MARKS`) stand for the surface of a task; the rest of a command is what is asked.
"""

from __future__ import annotations

import operator
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

Lines = list[str]
Marks = Mapping[str, str]
Make = Callable[[random.Random, str], "Filter"]

SEPARATORS = {".csv": ",", ".txt": " "}
NAMES = "ada ben cleo dan eva finn gus hana ivo june kit lena max nora otto pia".split()  # noqa: SIM905
KINDS = ("cat", "dog", "fish", "bird", "catfish")
COLOURS = ("red", "blue", "green", "pink", "gold", "grey")


class Filter(Struct, frozen=True):
    """`command` reads its input, or the file whose name is put behind it. A `run` without lines is not asked."""

    wish: str
    command: str
    run: Callable[[Lines, Marks], Lines]


def table(rng: random.Random, separator: str) -> tuple[Lines, dict[str, str]]:
    """Seven to ten lines, and the marks that speak of them."""
    n = rng.randint(7, 10)
    names, numbers, more = rng.sample(NAMES, n), rng.sample(range(10, 100, 5), n), rng.sample(range(10, 100, 5), n)
    kinds = [rng.choice(KINDS) for _ in names]
    written = [kind.capitalize() if rng.random() < 0.3 else kind for kind in kinds]
    lines = [separator.join(map(str, row)) for row in zip(names, written, numbers, more, strict=True)]
    word, other = rng.sample(KINDS, 2)
    marks = {"WORD": word, "OTHER": other, "LETTER": rng.choice(names)[0], "NEW": rng.choice(COLOURS)}
    return lines, marks


def filled(text: str, marks: Marks) -> str:
    for mark, word in marks.items():
        text = text.replace(mark, word)
    return text


_CHARACTERS = {",": "comma", " ": "space", ";": "semicolon", ":": "colon", "|": "bar", "/": "slash", "-": "hyphen"}
_PATTERNS = (  # in words, as arguments of grep, and as a regular expression
    ("with WORD", "WORD", "WORD"),
    ("with the whole word WORD", "-w WORD", r"\bWORD\b"),
    ("with WORD or OTHER", "-E 'WORD|OTHER'", "WORD|OTHER"),
    ("with a capital letter", "'[A-Z]'", "[A-Z]"),
    ("starting with LETTER", "^LETTER", "^LETTER"),
    ("starting with a letter from a to f", "'^[a-f]'", "^[a-f]"),
    ("ending in 5", "'5$'", "5$"),
    ("ending in 0", "'0$'", "0$"),
)
_COMPARISONS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    ">": ("over", operator.gt),
    "<": ("under", operator.lt),
    ">=": ("at least", operator.ge),
    "<=": ("at most", operator.le),
}
_OPERATIONS: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "+": ("add {n} to column {k}", operator.add),
    "-": ("subtract {n} from column {k}", operator.sub),
    "*": ("multiply column {k} by {n}", operator.mul),
}


def _awk(separator: str, program: str, out: bool = False) -> str:
    between = {",": " -F,", " ": ""}[separator] + (" -v OFS=," if out and separator == "," else "")
    return f"awk{between} '{program}'"


def _cut(separator: str, columns: str) -> str:
    between = {",": ",", " ": "' '"}[separator]
    return f"cut -d{between} -f{columns}"


def _lines(n: int) -> str:
    return "line" if n == 1 else f"{n} lines"


def _matching(rng: random.Random) -> tuple[str, str, Callable[[str, Marks], bool]]:
    """Lines that match, in words, as arguments of grep, and as Python."""
    says, arguments, pattern = rng.choice(_PATTERNS)
    if "WORD" in pattern and rng.random() < 0.4:
        found = re.IGNORECASE
        return f"{says} (capital letters or not)", f"-i {arguments}", lambda s, m: _found(pattern, s, m, found)
    return says, arguments, lambda s, m: _found(pattern, s, m)


def _found(pattern: str, line: str, marks: Marks, flags: int = 0) -> bool:
    return re.search(filled(pattern, marks), line, flags) is not None


def _grep(rng: random.Random, separator: str) -> Filter:
    says, arguments, matches = _matching(rng)
    how, n = rng.choice(("keep", "drop", "first")), rng.randint(1, 3)
    if how == "drop":
        return Filter(
            f"drop the lines {says}", f"grep -v {arguments}", lambda t, m: [s for s in t if not matches(s, m)]
        )
    if how == "keep":
        return Filter(f"keep the lines {says}", f"grep {arguments}", lambda t, m: [s for s in t if matches(s, m)])
    return Filter(
        f"keep the first {_lines(n)} {says}",
        f"grep -m{n} {arguments}",
        lambda t, m: [s for s in t if matches(s, m)][:n],
    )


def _test(rng: random.Random, column: int, separator: str) -> tuple[str, str, Callable[[str, Marks], bool]]:
    """What a line's columns have to be, in words, for awk, and as Python."""
    kind, sign, limit = rng.random(), rng.choice(list(_COMPARISONS)), rng.randrange(20, 90, 10)
    says, compare = _COMPARISONS[sign]
    if kind < 0.1:
        return "column 2 equal to WORD", '$2=="WORD"', lambda s, m: s.split(separator)[1] == m["WORD"]
    if kind < 0.2:
        other = 7 - column  # of 3 and 4, which hold numbers
        return (
            f"column {column} {says} column {other}",
            f"${column}{sign}${other}",
            lambda s, m: compare(*(int(s.split(separator)[k - 1]) for k in (column, other))),
        )
    return (
        f"column {column} {says} {limit}",
        f"${column}{sign}{limit}",
        lambda s, m: compare(int(s.split(separator)[column - 1]), limit),
    )


def _where(rng: random.Random, separator: str) -> Filter:
    columns = rng.sample((3, 4), rng.randint(1, 2))
    says, tests, holds = zip(*(_test(rng, column, separator) for column in columns), strict=True)
    word, sign, both = rng.choice((("and", "&&", all), ("or", "||", any)))
    return Filter(
        f"keep the lines with {f' {word} '.join(says)}",
        _awk(separator, f" {sign} ".join(tests)),
        lambda t, m: [s for s in t if both(test(s, m) for test in holds)],
    )


def _sort(rng: random.Random, separator: str) -> Filter:
    by, column, down = rng.choice(("line", "number", "kind")), rng.choice((3, 4)), rng.random() < 0.5
    at = " -t," if separator == "," else ""

    def number(line: str) -> int:
        return int(line.split(separator)[column - 1])

    if by == "line":
        says = "sort the lines backwards, from z to a" if down else "sort the lines"
        return Filter(says, "sort -r" if down else "sort", lambda t, m: sorted(t, reverse=down))
    flags, order = ("nr", "largest first") if down else ("n", "smallest first")
    if by == "number":
        says, command = f"sort by column {column} as numbers, {order}", f"sort{at} -k{column},{column}{flags}"
        return Filter(says, command, lambda t, m: sorted(t, key=number, reverse=down))
    return Filter(
        f"sort by column 2 and, where it is the same, by column {column} as numbers, {order}",
        f"sort{at} -k2,2 -k{column},{column}{flags}",
        lambda t, m: sorted(sorted(t, key=number, reverse=down), key=lambda s: s.split(separator)[1]),
    )


def _slice(rng: random.Random, separator: str) -> Filter:
    n = rng.randint(1, 6)
    m = n + rng.randint(1, 4)
    return rng.choice((
        Filter(f"keep the first {_lines(n)}", f"head -n {n}", lambda t, _: t[:n]),
        Filter(f"keep the last {_lines(n)}", f"tail -n {n}", lambda t, _: t[-n:]),
        Filter(f"drop the first {_lines(n)}", f"tail -n +{n + 1}", lambda t, _: t[n:]),
        Filter(f"drop the last {_lines(n)}", f"head -n -{n}", lambda t, _: t[:-n]),
        Filter(f"keep lines {n} to {m}", f"sed -n {n},{m}p", lambda t, _: t[n - 1 : m]),
        Filter(f"drop lines {n} to {m}", f"sed {n},{m}d", lambda t, _: t[: n - 1] + t[m:]),
        Filter(f"drop line {n}", f"sed {n}d", lambda t, _: t[: n - 1] + t[n:]),
        Filter("keep every second line, from the first on", "awk NR%2==1", lambda t, _: t[::2]),
        Filter("keep every third line, from the third on", "awk NR%3==0", lambda t, _: t[2::3]),
        Filter("turn the order of the lines round", "tac", lambda t, _: t[::-1]),
    ))  # fmt: skip


def _replace(rng: random.Random, separator: str) -> Filter:
    where, n, fold = rng.randrange(4), rng.randint(1, 6), rng.random() < 0.4
    m = n + rng.randint(1, 4)
    says, at, chosen = (
        ("", "", lambda at, s, marks: True),
        (f" in lines {n} to {m}", f"{n},{m}", lambda at, s, marks: n <= at <= m),
        (" in the lines ending in 5", "/5$/", lambda at, s, marks: s.endswith("5")),
        (" in the lines starting with LETTER", "/^LETTER/", lambda at, s, marks: s.startswith(marks["LETTER"])),
    )[where]

    def run(lines: Lines, marks: Marks) -> Lines:
        pattern = re.compile(marks["WORD"], re.IGNORECASE if fold else 0)
        return [pattern.sub(marks["NEW"], s) if chosen(at, s, marks) else s for at, s in enumerate(lines, 1)]

    case = " (capital letters or not)" if fold else ""
    return Filter(f"replace WORD{case} by NEW{says}", f"sed '{at}s/WORD/NEW/g{'I' if fold else ''}'", run)


def _columns(rng: random.Random, separator: str) -> Filter:
    columns = rng.sample((1, 2, 3, 4), rng.randint(1, 3))
    several = "columns " + ", ".join(map(str, columns)) + " in this order" if columns[1:] else f"column {columns[0]}"
    printed = _awk(separator, "{print " + ",".join(f"${k}" for k in columns) + "}", out=True)
    return Filter(
        f"keep only {several}",
        _cut(separator, ",".join(map(str, columns))) if columns == sorted(columns) else printed,
        lambda t, m: [separator.join(s.split(separator)[k - 1] for k in columns) for s in t],
    )


def _count(rng: random.Random, separator: str) -> Filter:
    says, arguments, matches = _matching(rng)

    def matching(lines: Lines, marks: Marks) -> Lines:
        n = sum(matches(line, marks) for line in lines)
        return [str(n)] if n else []

    return rng.choice((
        Filter(f"count the lines {says}", f"grep -c {arguments}", matching),
        Filter("count the lines", "wc -l", lambda t, m: [str(len(t))]),
        Filter("count the bytes", "wc -c", lambda t, m: [str(sum(len(s) + 1 for s in t))]),
        Filter("count the words", "wc -w", lambda t, m: [str(sum(len(s.split()) for s in t))]),
    ))  # fmt: skip


def _aggregate(rng: random.Random, separator: str) -> Filter:
    column = rng.choice((3, 4))
    says, test, holds = _test(rng, 7 - column, separator)
    if rng.random() < 0.2:
        says, test, holds = "", "1", lambda s, m: True
    which, step, of = rng.choice((
        ("sum", f"{{s+=${column}}}", sum), ("largest number", f"&& ${column}>s{{s=${column}}}", max),
        ("smallest number", f"&& (!s || ${column}<s){{s=${column}}}", min),
    ))  # fmt: skip

    def run(lines: Lines, marks: Marks) -> Lines:
        numbers = [int(s.split(separator)[column - 1]) for s in lines if holds(s, marks)]
        return [str(of(numbers))] if numbers else []

    asked = f"find the {which} in column {column}" if which != "sum" else f"add up column {column}"
    return Filter(
        asked + (f" over the lines with {says}" if says else ""), _awk(separator, f"{test} {step}END{{print s}}"), run
    )


def _characters(rng: random.Random, separator: str) -> Filter:
    new = rng.choice([c for c in _CHARACTERS if c not in ", "])
    n, m = rng.randint(1, 5), rng.randint(6, 9)
    return rng.choice((
        Filter("write everything in capitals", "tr a-z A-Z", lambda t, _: [s.upper() for s in t]),
        Filter("write everything in small letters", "tr A-Z a-z", lambda t, _: [s.lower() for s in t]),
        Filter("delete all digits", "tr -d 0-9", lambda t, _: [re.sub("[0-9]", "", s) for s in t]),
        Filter(f"delete every {_CHARACTERS[separator]}", f"tr -d '{separator}'",
               lambda t, _: [s.replace(separator, "") for s in t]),
        Filter(f"put a {_CHARACTERS[new]} in place of every {_CHARACTERS[separator]}", f"tr '{separator}' '{new}'",
               lambda t, _: [s.replace(separator, new) for s in t]),
        Filter(f"keep only characters {n} to {m} of each line", f"cut -c {n}-{m}",
               lambda t, _: [s[n - 1 : m] for s in t]),
        Filter(f"join all lines to one, with a {_CHARACTERS[new]} between them", f"paste -sd '{new}'",
               lambda t, _: [new.join(t)]),
    ))  # fmt: skip


def _written(rng: random.Random, separator: str) -> Filter:
    """Something is written beside the lines."""
    n, mark = rng.randint(1, 6), rng.choice([c for c in _CHARACTERS if c not in ", "])
    name = _CHARACTERS[mark]

    def put(before: int, after: int) -> Callable[[Lines, Marks], Lines]:
        return lambda t, m: [*t[:before], m["NEW"], *t[after:]] if n <= len(t) else t

    return rng.choice((
        Filter(f"insert a line NEW before line {n}", f"sed '{n}i NEW'", put(n - 1, n - 1)),
        Filter(f"insert a line NEW after line {n}", f"sed '{n}a NEW'", put(n, n)),
        Filter(f"put a line NEW in place of line {n}", f"sed '{n}c NEW'", put(n - 1, n)),
        Filter(f"put NEW and a {name} before each line", f"sed 's#^#NEW{mark}#'",
               lambda t, m: [m["NEW"] + mark + s for s in t]),
        Filter(f"put a {name} and NEW behind each line", f"sed 's#$#{mark}NEW#'",
               lambda t, m: [s + mark + m["NEW"] for s in t]),
        Filter(f"put its number and a {name} before each line", f"awk '{{print NR \"{mark}\" $0}}'",
               lambda t, m: [f"{at}{mark}{s}" for at, s in enumerate(t, 1)]),
    ))  # fmt: skip


def _computed(rng: random.Random, separator: str) -> Filter:
    sign, column, n, more = rng.choice(list(_OPERATIONS)), rng.choice((3, 4)), rng.randint(2, 9), rng.random() < 0.3
    says, of = _OPERATIONS[sign]

    def changed(line: str, _: Marks) -> str:
        row = line.split(separator)
        a, b = int(row[2]), int(row[3])
        if more:
            return separator.join([*row, str(of(a, b))])
        row[column - 1] = str(of((a, b)[column - 3], n))
        return separator.join(row)

    if more:
        says, program = f"add a fifth column: column 3 {sign} column 4", f"{{print $0,$3{sign}$4}}"
    else:
        says, program = says.format(n=n, k=column), f"{{${column}{sign}={n}}}1"
    return Filter(says, _awk(separator, program, out=True), lambda t, m: [changed(s, m) for s in t])


def _groups(rng: random.Random, separator: str) -> Filter:
    """What belongs together by column 2."""
    column = rng.choice((3, 4))

    def totals(lines: Lines, _: Marks) -> Lines:
        found: Counter[str] = Counter()
        for row in (line.split(separator) for line in lines):
            found[row[1]] += int(row[column - 1])
        return sorted(f"{kind} {total}" for kind, total in found.items())

    def counts(lines: Lines, _: Marks) -> Lines:
        return sorted(f"{kind} {n}" for kind, n in Counter(line.split(separator)[1] for line in lines).items())

    total = _awk(separator, f"{{s[$2]+=${column}}}END{{for(k in s)print k,s[k]}}") + " | sort"
    counted = f"{_cut(separator, '2')} | sort | uniq -c | awk '{{print $2,$1}}'"
    return rng.choice((
        Filter("keep only the different values of column 2, sorted", f"{_cut(separator, '2')} | sort -u",
               lambda t, m: sorted({s.split(separator)[1] for s in t})),
        Filter("count how often each value of column 2 occurs, as 'value count', sorted by value", counted, counts),
        Filter(f"add up column {column} for each value of column 2, as 'value sum', sorted by value", total, totals),
    ))  # fmt: skip


KEEP: tuple[Make, ...] = (_grep, _where, _sort, _slice, _replace)
FINISH: tuple[Make, ...] = (_columns, _count, _aggregate, _characters, _written, _computed)
TOGETHER: tuple[Make, ...] = (_groups,)
