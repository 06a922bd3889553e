"""Answers that have to be JSON, read strictly: duplicate keys, NaN and text beside the value are out of form."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

_FENCE = re.compile(r"^```(?:json)?[ \t]*\n(.*?)\n```[ \t]*$", re.S | re.M)
_LONGEST = 1 << 18  # characters


class Found(NamedTuple):
    """What a check says: whether the answer is right, why not, and named parts of that."""

    right: bool
    why: str
    components: dict[str, float]


class FormError(ValueError):
    """The text is not in the form that was asked for; the message may be shown to the model."""


def read_json(text: str) -> Any:
    """The whole text as one JSON value, or the one fenced block in it. Raises FormError."""
    if len(text) > _LONGEST:
        raise FormError(f"the answer is longer than {_LONGEST} characters")
    blocks = _FENCE.findall(text)
    if len(blocks) > 1:
        raise FormError("there are several fenced blocks, expected one")
    try:
        value = json.loads(blocks[0] if blocks else text, object_pairs_hook=_object, parse_constant=constant)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate could not be told to anybody
        return value
    except RecursionError:
        raise FormError("the JSON is nested too deeply") from None
    except ValueError as error:
        raise FormError(f"expected JSON and nothing else: {error}") from None


def equal(a: Any, b: Any) -> bool:
    """As JSON: 1 is 1.0, and true is not 1."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(value, b[key]) for key, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands there twice")
    return found


def constant(name: str) -> None:
    """What a reader of JSON does about NaN and Infinity."""
    raise ValueError(f"{name} is no JSON")
