"""Pairs of queries that sqlglot's optimiser and transpiler hold to be equal, and SQLite confirms, are judged so."""

from __future__ import annotations

import itertools

import pytest
import sqlglot
from sqlglot.optimizer import optimize

from temper.domains import sql as domain
from temper.verifiers.checks.sql import check

TYPES = {"owner_id": "INT", "id": "INT"}
DOMAIN = domain.create()


def tasks(level, n):
    return itertools.islice(DOMAIN.tasks("heldout", level, 5), n)


def schema_of(script):
    """Tables and columns of a script of the domain, numbers as such."""
    tables = {}
    for tree in sqlglot.parse(script, dialect="sqlite"):
        if isinstance(tree, sqlglot.exp.Create):
            columns = [column.name for column in tree.this.expressions]
            tables[tree.this.this.name] = {
                name: TYPES.get(name, "INT" if n > 1 else "TEXT") for n, name in enumerate(columns)
            }
    return tables


def typed(script):
    """The same for DuckDB, which wants types."""
    for table, columns in schema_of(script).items():
        bare = f"CREATE TABLE {table}({', '.join(columns)})"
        assert bare in script
        script = script.replace(bare, f"CREATE TABLE {table}({', '.join(f'{n} {t}' for n, t in columns.items())})")
    return script.replace("owners(id INT, owner TEXT, town INT)", "owners(id INT, owner TEXT, town TEXT)")


def pairs(task):
    """(name, query) that say the same."""
    gold = task.reference["query"]
    schema = schema_of(task.reference["databases"][0])
    yield "optimised", optimize(gold, schema=schema, dialect="sqlite").sql("sqlite")
    yield (
        "written for PostgreSQL and back",
        sqlglot.transpile(sqlglot.transpile(gold, "sqlite", "postgres")[0], "postgres", "sqlite")[0],
    )
    yield "pretty", sqlglot.transpile(gold, "sqlite", "sqlite", pretty=True)[0]


def confirmed(script, one, two):
    """Whether SQLite gives the same rows for both, order left aside."""
    import sqlite3

    with sqlite3.connect(":memory:") as db:
        db.executescript(script)
        return sorted(map(repr, db.execute(one).fetchall())) == sorted(map(repr, db.execute(two).fetchall()))


@pytest.mark.parametrize(
    ("engine", "n"),
    [("sqlite", 8), ("duckdb", 1), *(pytest.param(e, 90, marks=pytest.mark.nightly) for e in ("sqlite", "duckdb"))],
)
def test_pairs_that_are_confirmed_equal_pass(engine, n):
    if engine == "duckdb":
        pytest.importorskip("duckdb")
    judged = 0
    for level in (1, 2, 3):
        for task in tasks(level, n):
            gold = task.reference["query"]
            scripts = task.reference["databases"]
            for name, query in pairs(task):
                if not all(confirmed(script, gold, query) for script in scripts):
                    continue
                judged += 1
                databases = [typed(script) for script in scripts] if engine == "duckdb" else scripts
                assert check(databases, gold, query, engine) == ("right", ""), (name, gold, query)
    assert judged > 6 * n
