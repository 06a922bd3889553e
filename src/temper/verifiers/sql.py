"""A query is right when it gives the gold query's rows on every one of several mutated databases (`checks.sql`).

Reference: {"databases": [SQL script, ...] (at least 2, with different expected rows), "query": the gold query,
"ordered": whether the question asks for an order (left out: when the gold query has one), "columns": "free" or
"ordered"}.
The policy delivers `query.sql`. Anything but one reading statement is wrong. Config.engine: "sqlite" or "duckdb".
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.task import Task
from temper.verifiers.grading import Given, Judgement, Plugin


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 5.0  # limit of both queries on all databases
    engine: Literal["sqlite", "duckdb"] = "sqlite"


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    databases: list[str]
    query: str
    ordered: bool | None = None
    columns: Literal["free", "ordered"] = "free"


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    try:
        query = given.file("query.sql").decode("utf-8")
    except UnicodeDecodeError:
        return Judgement(0.0, "query.sql is not UTF-8 text")
    task_side = (reference.databases, reference.query)
    rules = (settings.engine, reference.ordered, reference.columns == "free")
    found, why = await given.pool.judge(
        "temper.verifiers.checks.sql:check",
        (*task_side, query, *rules),
        (*task_side, reference.query, *rules),
        lambda f: f[0] == "right",
        settings.seconds,
    )
    if found == "gold-fails":
        raise FaultError(found, "verifiers.sql", why)
    return Judgement(float(found == "right"), why)


def _problem(reference: Reference, task: Task) -> str:
    return "" if len(reference.databases) > 1 else "expected two databases or more"


def _libraries(settings: Config) -> tuple[str, ...]:
    return ("sqlglot", "duckdb") if settings.engine == "duckdb" else ("sqlglot",)


create = Plugin(__name__, Config, Reference, judge, _problem, _libraries, "sql")
