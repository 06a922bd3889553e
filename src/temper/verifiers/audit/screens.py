"""Is a mutation one at all? Our own solution and its mutant on more inputs than the task's grader has.

`python` sees mutations of our own gold answers in a pool worker, and a model's programs only as `main` in a sandbox;
`sql` reads and does nothing else. The rules are not those of the verifiers, so
that an answer called wrong here and right there is the verifier's (or the task's hidden cases') false positive.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import random
import sqlite3
import sys
import types
from collections.abc import Mapping
from typing import Any

_TRIES = 150
_SHUFFLES = 4


def python(gold: dict[str, str], mutant: dict[str, str], module: str, calls: list[list[Any]]) -> bool:
    """Whether any of many calls, mixed from the arguments of `calls` ([function, args, kwargs]), ends differently.

    Calls on which the gold solution raises are outside of what was asked.
    """
    rng = random.Random(0)
    ours, theirs = _loaded(gold, module), _loaded(mutant, module)
    for n in range(_TRIES):
        function, args, kwargs = calls[n % len(calls)]
        if n >= len(calls):
            pools = [found for name, found, _ in calls if name == function and len(found) == len(args)]
            args = [_near(rng, rng.choice(pools)[at]) for at in range(len(args))]
        want = _outcome(getattr(ours, function), args, kwargs)
        if not isinstance(want, type) and want != _outcome(getattr(theirs, function, None), args, kwargs):
            return True
    return False


def sql(databases: list[str], gold: str, mutant: str, whole: bool = True) -> bool:
    """Whether the queries give different rows on a database, or on one whose columns were shuffled.

    `whole`: the order of columns counts.
    """
    ordered = "order by" in gold.lower()
    if "\0" in mutant:
        return True
    for n in range(len(databases) * (1 + _SHUFFLES)):
        with contextlib.closing(sqlite3.connect(":memory:")) as db:
            db.executescript(databases[n % len(databases)])
            if n >= len(databases):
                _shuffle(db, random.Random(n))
            db.set_authorizer(_authorize)
            want, got = (_rows(db, query, ordered, whole) for query in (gold, mutant))
        if want != got:
            return True
    return False


def _loaded(sources: Mapping[str, str], name: str) -> Any:
    """The module of that name, with its imports from `sources` first."""
    known: dict[str, types.ModuleType] = {}

    def load(name: str) -> types.ModuleType:
        if name not in known:
            known[name] = types.ModuleType(name)
            vars(known[name])["__builtins__"] = {**vars(builtins), "__import__": find}
            exec(sources[f"{name.replace('.', '/')}.py"], vars(known[name]))
        return known[name]

    def find(name: str, *rest: Any, **more: Any) -> Any:
        return load(name) if f"{name}.py" in sources else __import__(name, *rest, **more)

    return load(name)


def _outcome(function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The value with its type, or the exception's class."""
    try:
        return repr(function(*_copy(args), **_copy(kwargs)))
    except Exception as error:  # whatever the mutation made it do
        return type(error)


def _near(rng: random.Random, value: Any) -> Any:
    if type(value) is int:
        return value + rng.choice((0, 0, 1, -1))
    if isinstance(value, list) and value:
        items = [_near(rng, item) for item in value]
        return rng.choice((items, items[:-1], items + items[:1], rng.sample(items, len(items))))
    return value


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list) else value


def _shuffle(db: sqlite3.Connection, rng: random.Random) -> None:
    """Deal every column's values out anew; the values that conditions name stay."""
    for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        rows = db.execute(f'SELECT * FROM "{table}"').fetchall()
        if rows:
            columns = [rng.sample(column, len(column)) for column in zip(*rows, strict=True)]
            db.execute(f'DELETE FROM "{table}"')
            places = ", ".join("?" * len(columns))
            db.executemany(f'INSERT INTO "{table}" VALUES ({places})', list(zip(*columns, strict=True)))


def _rows(db: sqlite3.Connection, query: str, ordered: bool, whole: bool) -> list[str]:
    try:
        rows = [[repr(_number(value)) for value in row] for row in db.execute(query).fetchall()]
        rows = [repr(row if whole else sorted(row)) for row in rows]
    except (sqlite3.Error, sqlite3.Warning) as error:
        return [str(error)]
    return rows if ordered else sorted(rows)


def _number(value: Any) -> Any:
    """1 and 1.0 are one number in SQL."""
    return float(value) if isinstance(value, int) and abs(value) < 2**53 else value


def _authorize(action: int, *_: Any) -> int:
    reads = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE, sqlite3.SQLITE_FUNCTION)
    return sqlite3.SQLITE_OK if action in reads else sqlite3.SQLITE_DENY


def main() -> None:
    """In a sandbox: the arguments of `python` on stdin as {"nonce", "question"}, the result as the last line."""
    job = json.load(sys.stdin)
    print("\n" + json.dumps({"nonce": job["nonce"], "differs": python(*job["question"])}), flush=True)
