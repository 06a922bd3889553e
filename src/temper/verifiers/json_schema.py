"""The answer is JSON that conforms to a schema, by the jsonschema library, and, where given, equals an expected value.

Reference: {"schema": {...}, "example": JSON text that conforms, "equals": true}; with `equals` only the example's value
is right. Strict JSON: no text around it, no duplicate keys, no NaN. Needs the extra `temper-rl[schema]` (jsonschema).
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from temper.core.task import Task
from temper.verifiers import written
from temper.verifiers.checks.forms import FormError, equal, read_json

Config = written.Config


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    schema: Any
    example: str
    equals: bool = False


class SchemaError(ValueError):
    """The schema is none."""


def check(text: str, reference: dict[str, Any]) -> tuple[bool, str, dict[str, float]]:
    """Runs in a worker; `reference` as plain data. Remote references are not fetched. Raises SchemaError."""
    import jsonschema
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = reference["schema"]
    try:
        answer = read_json(text)
    except FormError as error:
        return False, str(error), {"conforms": 0.0}
    kind = validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise SchemaError(error.message) from None
    validator = kind(schema, registry=Registry(), format_checker=kind.FORMAT_CHECKER)
    try:
        worst = jsonschema.exceptions.best_match(validator.iter_errors(answer))
    except re.error as error:  # a pattern that Python's expressions do not have
        raise SchemaError(f"{error.pattern!r} is no pattern: {error}") from None
    except OverflowError as error:
        return False, f"it cannot be checked: {error}", {"conforms": 0.0}
    if worst is not None:
        return False, f"{worst.json_path}: {worst.message}"[:300], {"conforms": 0.0}
    right = not reference["equals"] or equal(answer, read_json(reference["example"]))
    return right, "" if right else "it conforms to the schema, but is not the expected value", {"conforms": 1.0}


def _problem(reference: Reference, task: Task) -> str:
    """Its own example has to conform."""
    right, why, _ = check(reference.example, {"schema": reference.schema, "equals": False})
    return "" if right else f"the example does not conform: {why}"


create = written.checked(
    __name__, Config, Reference, lambda reference: reference.example, _problem, ("jsonschema",), "schema"
)
