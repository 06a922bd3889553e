"""A query is right when it gives the gold query's rows on every one of several mutated databases (`checks.sql`).

Reference: {"databases": [SQL script, ...] (at least 2, with different expected rows), "query": the gold query,
"ordered": whether the question asks for an order (left out: when the gold query has one), "columns": "free" or
"ordered"}.
The policy delivers `query.sql`. Anything but one reading statement is wrong. Config.engine: "sqlite" or "duckdb".
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from temper.core.blame import FaultError
from temper.verifiers.grading import Given, Judgement, Plugin


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 5.0  # limit of both queries on all databases
    engine: Literal["sqlite", "duckdb"] = "sqlite"


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    databases: Annotated[list[str], Meta(min_length=2)]
    query: str
    ordered: bool | None = None
    columns: Literal["free", "ordered"] = "free"


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    try:
        query = given.file("query.sql").decode("utf-8")
    except UnicodeDecodeError:
        return Judgement(0.0, "query.sql is not UTF-8 text")
    rules = (settings.engine, reference.ordered, reference.columns == "free")
    answer, gold = ((reference.databases, reference.query, text, *rules) for text in (query, reference.query))
    found, why = await given.pool.judge(
        "temper.verifiers.checks.sql:check", answer, gold, lambda f: f[0] == "right", settings.seconds
    )
    if found == "gold-fails":
        raise FaultError(found, "verifiers.sql", why)
    return Judgement(float(found == "right"), why)


def _libraries(settings: Config) -> tuple[str, ...]:
    return ("sqlglot", "duckdb") if settings.engine == "duckdb" else ("sqlglot",)


create = Plugin(__name__, Config, Reference, judge, libraries=_libraries, extra="sql")
