"""Two SQL queries on the same databases, SQLite or DuckDB: do they give the same rows? In memory, read-only, bounded.

Rows are compared as a multiset; where the gold query has a top-level ORDER BY (and `ordered` does not say otherwise),
in its order, and rows that tie in its keys may change places. A LIMIT that cuts through ties accepts any of the tied
rows. Numbers compare as in SQL (1 = 1.0) and floats within 1e-9 (at 0, 1e-12); NULLs are equal. Columns that carry the
gold's own names are known by them; otherwise they may stand in any one order that fits all databases, unless `free` is
false. Extra columns and rounded values are wrong.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import sqlglot
from sqlglot import exp

_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_FORBIDDEN = {"random", "randomblob", "load_extension", "readfile", "writefile"}
_UNSTEADY = re.compile(
    r"\b(?:(?:random|setseed|uuid\w*|gen_random_uuid|getenv|now|today|txid_current|(?:transaction|get_current)_\w+)(?=\s*\()"
    r"|(?:current|local)_?(?:date|time|timestamp)\b)",
    re.I,
)
_MOST_COLUMNS = 5  # of which every order is tried
_STEPS = 20_000_000  # virtual machine instructions of one query, a second or two
_LONGEST = 1 << 20  # bytes of one value or of the query
_MOST_ROWS = 50_000
_CLOSE = {"rel_tol": 1e-9, "abs_tol": 1e-12}  # the latter for a difference that should be 0

Row = tuple[Any, ...]


class GoldError(Exception):
    """The task's own query or databases do not work."""


class Expected(NamedTuple):
    """Groups of rows that tie, in order; the answer is the window [start, stop) over all of them."""

    names: list[str]
    groups: list[list[Row]]
    start: int
    stop: int
    ordered: bool = True


class Result(NamedTuple):
    """What one database gives: the gold rows, and the columns and rows of the query."""

    expected: Expected
    names: list[str]
    rows: list[Row]


def check(
    databases: list[str], gold: str, query: str, engine: str = "sqlite", ordered: bool | None = None, free: bool = True
) -> tuple[str, str]:
    """("right" | "wrong" | "gold-fails", why)."""
    seen = set()
    results: list[Result] = []
    wrong = ""
    for n, script in enumerate(databases):
        try:
            expected = _expected(script, gold, engine, ordered)
        except (*_errors(engine), sqlglot.errors.SqlglotError, GoldError, ValueError) as error:
            return "gold-fails", f"database {n + 1}: {error}"
        seen.add(repr((expected.groups, expected.start, expected.stop)))
        try:
            results.append(Result(expected, *_rows(script, query, expected.stop - expected.start + 1, engine)))
        except (*_errors(engine), ValueError) as error:
            wrong = wrong or f"the query does not run: {error}"
    if len(seen) < 2:
        return "gold-fails", "the expected rows are the same in all databases, so that a constant would pass"
    wrong = wrong or _compare(results, free)
    return ("wrong", wrong) if wrong else ("right", "")


def _compare(results: list[Result], free: bool) -> str:
    """Why the query is wrong, "" when it is right: one order of columns has to fit all databases."""
    first = results[0]
    width = len(first.expected.names)
    if len(first.names) != width:
        return f"the query gives {len(first.names)} columns, expected {width}"
    whole = tuple(range(width))
    orders = itertools.permutations(whole) if free and width <= _MOST_COLUMNS else iter([whole])
    lowered, wanted = [name.lower() for name in first.names], [name.lower() for name in first.expected.names]
    if sorted(lowered) == sorted(wanted) and len(set(wanted)) == width:
        orders = iter([tuple(lowered.index(name) for name in wanted)])
    furthest = 0
    for order in orders:
        placed = ([tuple(row[at] for at in order) for row in result.rows] for result in results)
        fits = (_match(result.expected, rows) for result, rows in zip(results, placed, strict=True))
        at = next((n for n, right in enumerate(fits) if not right), None)
        if at is None:
            return ""
        furthest = max(furthest, at)
    return f"the rows are not the expected ones (database {furthest + 1})"


def _expected(script: str, gold: str, engine: str, ordered: bool | None) -> Expected:
    """Run the gold query without its LIMIT and with its ORDER BY keys as further columns."""
    tree = sqlglot.parse_one(gold, dialect=engine)
    if not isinstance(tree, exp.Query):
        raise GoldError("the gold query is no SELECT")
    names, plain = _rows(script, gold, _MOST_ROWS, engine)
    order, start, limit = tree.args.get("order"), _number(tree, "offset") or 0, _number(tree, "limit")
    if order is None and limit is None:
        return Expected(names, [plain], 0, len(plain))
    whole = tree.copy()
    whole.set("limit", None)
    whole.set("offset", None)
    keys = _keys(whole, order.expressions if order else [], len(names))
    groups: list[list[Row]] = []
    last: Any = None
    for row in _rows(script, whole.sql(dialect=engine), _MOST_ROWS, engine)[1]:
        key = tuple(row[at] for at in keys)
        if not groups or key != last:
            groups.append([])
        groups[-1].append(row[: len(names)])
        last = key
    stop = min(sum(map(len, groups)), _MOST_ROWS if limit is None else start + limit)
    expected = Expected(names, groups, min(start, stop), stop, ordered is not False)
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


def _rows(script: str, query: str, most: int, engine: str) -> tuple[list[str], list[Row]]:
    """Column names and at most `most` rows. Raises an error of the engine, or ValueError, for whatever may not run."""
    if len(query) > _LONGEST or "\0" in query:
        raise ValueError("the query is too long, or no text")
    return (_duckdb if engine == "duckdb" else _sqlite)(script, query, most)


def _sqlite(script: str, query: str, most: int) -> tuple[list[str], list[Row]]:
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


def _duckdb(script: str, query: str, most: int) -> tuple[list[str], list[Row]]:
    """Without files or network; long ones are ended by the pool."""
    import duckdb

    settings = {"enable_external_access": "false", "threads": "1", "memory_limit": "256MB"}
    with duckdb.connect(":memory:", config=settings) as db:
        db.execute(script)
        db.execute("SET lock_configuration = true")
        statements = db.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise ValueError("expected one SELECT")
        if word := _UNSTEADY.search(query):
            raise ValueError(f"{word[0]} gives another answer each time")
        cursor = db.execute(query)
        names = [column[0] for column in cursor.description or ()]
        return names, [tuple(_plain(value) for value in row) for row in cursor.fetchmany(most)]


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal | float):
        return float(value) if value == value else math.nan  # one and the same, so that it equals itself in a row
    return repr(value) if isinstance(value, list | dict | set | tuple) else value


def _errors(engine: str) -> tuple[type[Exception], ...]:
    if engine != "duckdb":
        return sqlite3.Error, sqlite3.Warning
    import duckdb

    return duckdb.Error, OverflowError  # the latter for values that Python does not have


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
    whole: list[Row] = []
    shown: list[Row] = []
    for group in expected.groups:
        begin, end = max(at, expected.start), min(at + len(group), expected.stop)
        at += len(group)
        if begin >= end:
            continue
        if expected.ordered and not _within(rows[begin - expected.start : end - expected.start], group):
            return False
        shown += group
        whole += group if end - begin == len(group) else []
    return expected.ordered or (_within(whole, rows) and _within(rows, shown))


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
        x == y or (isinstance(x, float | int) and isinstance(y, float | int) and math.isclose(x, y, **_CLOSE))
        for x, y in zip(a, b, strict=True)
    )
