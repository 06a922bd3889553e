"""A JSON answer against a JSON Schema, by the jsonschema library. Remote references are not fetched."""

from __future__ import annotations

from typing import Any

import jsonschema
from jsonschema.validators import validator_for
from referencing import Registry

from temper.verifiers.checks.forms import FormError, read_json


class SchemaError(ValueError):
    """The schema is none."""


def check(text: str, reference: dict[str, Any]) -> tuple[bool, str, dict[str, float]]:
    """`reference`: as `verifiers.json_schema.Reference`. Raises SchemaError."""
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
    worst = jsonschema.exceptions.best_match(validator.iter_errors(answer))
    if worst is not None:
        return False, f"{worst.json_path}: {worst.message}"[:300], {"conforms": 0.0}
    right = not reference["equals"] or _equal(answer, read_json(reference["example"]))
    return right, "" if right else "it conforms to the schema, but is not the expected value", {"conforms": 1.0}


def _equal(a: Any, b: Any) -> bool:
    """As JSON: 1 is 1.0 and true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(value, b[key]) for key, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)
