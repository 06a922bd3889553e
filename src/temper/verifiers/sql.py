"""A query is right when it gives the gold query's rows on every one of several mutated databases (`checks.sql`).

Reference: {"databases": [SQL script, ...] (at least 2, with different expected rows), "query": the gold query,
"ordered": whether the question asks for an order (left out: when the gold query has one), "columns": "free" or
"ordered"}.
The policy delivers `query.sql`. Anything but one reading statement is wrong. Config.engine: "sqlite" or "duckdb".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.protocols import SandboxBackend
from temper.core.task import Task
from temper.core.trace import Trace
from temper.verifiers.grading import Grader, Judgement, delivered, fingerprint
from temper.verifiers.pool import Pool

_CHECK = "temper.verifiers.checks.sql"


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 5.0  # limit of both queries on all databases
    engine: Literal["sqlite", "duckdb"] = "sqlite"


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    databases: list[str]
    query: str
    ordered: bool | None = None
    columns: Literal["free", "ordered"] = "free"


def create(config: Config | None, pool: Pool, sandboxes: SandboxBackend | None = None) -> Grader:
    settings = config or Config()

    async def judge(task: Task, trace: Trace, artifacts: Mapping[str, bytes], reference: Reference) -> Judgement:
        if len(reference.databases) < 2:
            raise FaultError("reference-missing", "verifiers.sql", "expected two databases or more")
        try:
            query = delivered(artifacts, "query.sql").decode("utf-8")
        except UnicodeDecodeError:
            return Judgement(0.0, "query.sql is not UTF-8 text")
        task_side = (reference.databases, reference.query)
        rules = (settings.engine, reference.ordered, reference.columns == "free")
        found, why = await pool.judge(
            f"{_CHECK}:check",
            (*task_side, query, *rules),
            (*task_side, reference.query, *rules),
            lambda f: f[0] == "right",
            settings.seconds,
        )
        if found == "gold-fails":
            raise FaultError(found, "verifiers.sql", why)
        return Judgement(float(found == "right"), why)

    libraries = ("sqlglot", *(["duckdb"] if settings.engine == "duckdb" else []))
    return Grader("sql", fingerprint(settings, __name__, _CHECK, libraries=libraries), Reference, judge)
