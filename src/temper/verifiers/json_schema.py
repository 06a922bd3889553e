"""The answer is JSON that conforms to a schema (`checks.json_schema`), and, where given, equals an expected value.

Reference: {"schema": {...}, "example": JSON text that conforms, "equals": true}; with `equals` only the example's value
is right. Strict JSON: no text around it, no duplicate keys, no NaN. Needs the extra `temper-rl[schema]` (jsonschema).
"""

from __future__ import annotations

import importlib.util
from typing import Any

from msgspec import Struct

from temper.core.errors import MissingError
from temper.core.protocols import SandboxBackend
from temper.verifiers import written
from temper.verifiers.grading import Grader
from temper.verifiers.pool import Pool

Config = written.Config


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    schema: Any
    example: str
    equals: bool = False


def create(config: Config | None, pool: Pool, sandboxes: SandboxBackend | None = None) -> Grader:
    if importlib.util.find_spec("jsonschema") is None:
        raise MissingError("checking JSON schemas needs jsonschema: pip install 'temper-rl[schema]'")
    checks, libraries = ("json_schema", "forms"), ("jsonschema",)
    return written.checked(__name__, config, pool, Reference, lambda r: r.example, _problem, checks, libraries)


def _problem(reference: Reference) -> str:
    """Why the reference is none, "" when it is sound: its own example has to conform."""
    from temper.verifiers.checks.json_schema import check

    right, why, _ = check(reference.example, {"schema": reference.schema, "equals": False})
    return "" if right else f"the example does not conform: {why}"
