"""Two SQL queries on the same SQLite databases: do they give the same rows? In memory, read-only, bounded by steps.

Rows are compared as a multiset; where the gold query has a top-level ORDER BY, in its order, and rows that tie in its
keys may change places. A LIMIT that cuts through ties accepts any of the tied rows. Numbers compare as in SQL (1 = 1.0)
and floats within 1e-9; NULLs are equal. Column names do not count and column order does, with one exception: columns
that carry the gold's own names may stand in another order. Extra columns and rounded values are wrong.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlglot
from sqlglot import exp

_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_FORBIDDEN = {"random", "randomblob", "load_extension", "readfile", "writefile"}
_STEPS = 20_000_000  # virtual machine instructions of one query, a second or two
_LONGEST = 1 << 20  # bytes of one value or of the query
_MOST_ROWS = 50_000
_CLOSE = 1e-9

Row = tuple[Any, ...]


class GoldError(Exception):
    """The task's own query or databases do not work."""


class Expected(NamedTuple):
    """Groups of rows that tie, in order; the answer is the window [start, stop) over all of them."""

    names: list[str]
    groups: list[list[Row]]
    start: int
    stop: int


def check(databases: list[str], gold: str, query: str) -> tuple[str, str]:
    """("right" | "wrong" | "gold-fails", why)."""
    seen = set()
    wrong = ""
    for n, script in enumerate(databases):
        try:
            expected = _expected(script, gold)
        except (sqlite3.Error, sqlite3.Warning, sqlglot.errors.SqlglotError, GoldError, ValueError) as error:
            return "gold-fails", f"database {n + 1}: {error}"
        seen.add(repr((expected.groups, expected.start, expected.stop)))
        wrong = wrong or _compare(script, query, expected, n)
    if len(seen) < 2:
        return "gold-fails", "the expected rows are the same in all databases, so that a constant would pass"
    return ("wrong", wrong) if wrong else ("right", "")


def _compare(script: str, query: str, expected: Expected, n: int) -> str:
    """Why the query is wrong on this database, "" when it is right."""
    try:
        names, rows = _rows(script, query, expected.stop - expected.start + 1)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        return f"the query does not run: {error}"
    if len(names) != len(expected.names):
        return f"the query gives {len(names)} columns, expected {len(expected.names)}"
    if _match(expected, rows):
        return ""
    lowered, wanted = [name.lower() for name in names], [name.lower() for name in expected.names]
    if lowered != wanted and sorted(lowered) == sorted(wanted) and len(set(wanted)) == len(wanted):
        order = [lowered.index(name) for name in wanted]
        if _match(expected, [tuple(row[at] for at in order) for row in rows]):
            return ""
    return f"the rows are not the expected ones (database {n + 1})"


def _expected(script: str, gold: str) -> Expected:
    """Run the gold query without its LIMIT and with its ORDER BY keys as further columns."""
    tree = sqlglot.parse_one(gold, dialect="sqlite")
    if not isinstance(tree, exp.Query):
        raise GoldError("the gold query is no SELECT")
    names, plain = _rows(script, gold, _MOST_ROWS)
    order, start, limit = tree.args.get("order"), _number(tree, "offset") or 0, _number(tree, "limit")
    if order is None and limit is None:
        return Expected(names, [plain], 0, len(plain))
    whole = tree.copy()
    whole.set("limit", None)
    whole.set("offset", None)
    keys = _keys(whole, order.expressions if order else [], len(names))
    groups: list[list[Row]] = []
    last: Any = None
    for row in _rows(script, whole.sql(dialect="sqlite"), _MOST_ROWS)[1]:
        key = tuple(row[at] for at in keys)
        if not groups or key != last:
            groups.append([])
        groups[-1].append(row[: len(names)])
        last = key
    stop = min(sum(map(len, groups)), _MOST_ROWS if limit is None else start + limit)
    expected = Expected(names, groups, min(start, stop), stop)
    if not _match(expected, plain):
        raise GoldError("the gold query does not give the same rows when it is run again")
    return expected


def _keys(tree: exp.Query, terms: Sequence[exp.Expression], width: int) -> list[int]:
    """Indexes of the columns that hold the ORDER BY keys; those that are not among the columns are added to `tree`."""
    selects = [] if tree.is_star else tree.selects
    named = {item.alias_or_name.lower(): n for n, item in enumerate(selects) if item.alias_or_name}
    shown = {item.unalias(): n for n, item in enumerate(selects)}
    plain = isinstance(tree, exp.Select) and not tree.args.get("distinct")
    keys: list[int] = []
    for term in terms:
        key = term.this if isinstance(term, exp.Ordered) else term
        if isinstance(key, exp.Literal) and not key.is_string:
            keys.append(int(key.this) - 1)
        elif isinstance(key, exp.Column) and not key.table and key.name.lower() in named:
            keys.append(named[key.name.lower()])
        elif key in shown:
            keys.append(shown[key])
        elif plain:
            tree.select(exp.alias_(key.copy(), f"order_key_{width}"), copy=False)
            keys.append(width)
            width += 1
        else:  # a key that cannot be seen: the rows are taken in the order in which they came
            return list(range(width))
    return keys


def _rows(script: str, query: str, most: int) -> tuple[list[str], list[Row]]:
    """Column names and at most `most` rows. Raises sqlite3.Error or ValueError for whatever may not run."""
    if len(query) > _LONGEST or "\0" in query:
        raise ValueError("the query is too long, or no text")
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(script)
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        steps = iter(range(_STEPS // 10_000))
        db.set_progress_handler(lambda: next(steps, None) is None, 10_000)
        db.set_authorizer(_authorize)
        try:
            cursor = db.execute(query)
            if cursor.description is None:
                raise ValueError("the query is no SELECT")
            return [column[0] for column in cursor.description], cursor.fetchmany(most)
        finally:
            db.set_authorizer(None)


def _authorize(action: int, _: str | None, name: str | None, *__: str | None) -> int:
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if (name or "").lower() in _FORBIDDEN else sqlite3.SQLITE_OK
    return sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY


def _number(tree: exp.Query, clause: str) -> int | None:
    found = tree.args.get(clause)
    if found is None:
        return None
    if not isinstance(found.expression, exp.Literal) or found.expression.is_string:
        raise GoldError(f"the gold query's {clause} is no plain number")
    return int(found.expression.this)


def _match(expected: Expected, rows: list[Row]) -> bool:
    if len(rows) != expected.stop - expected.start:
        return False
    at = 0
    for group in expected.groups:
        begin, end = max(at, expected.start), min(at + len(group), expected.stop)
        at += len(group)
        if begin < end and not _within(rows[begin - expected.start : end - expected.start], group):
            return False
    return True


def _within(rows: list[Row], group: list[Row]) -> bool:
    """Every row has its own partner in the group: equal, or differing by rounding in floats only."""
    left, spare = Counter(rows), Counter(group)
    rest, spare = left - spare, spare - left
    if not rest:
        return True
    partners: dict[Row, list[Row]] = {}
    for row in spare.elements():
        partners.setdefault(_rough(row), []).append(row)
    for row in rest.elements():
        near = partners.get(_rough(row), [])
        partner = next((other for other in near if _close(row, other)), None)
        if partner is None:
            return False
        near.remove(partner)
    return True


def _rough(row: Row) -> Row:
    return tuple(0.0 if isinstance(value, int | float) else value for value in row)


def _close(a: Row, b: Row) -> bool:
    return all(
        x == y or (isinstance(x, float | int) and isinstance(y, float | int) and math.isclose(x, y, rel_tol=_CLOSE))
        for x, y in zip(a, b, strict=True)
    )
