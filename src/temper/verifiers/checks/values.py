"""Python values as JSON that keeps their types: what the code verifier compares, and how arguments travel.

Its source is also run inside the sandbox, in front of `checks.driver` or `checks.remote`, so that both sides share one
definition: standard library only. Only exact built-in types have a form; everything else, however equal it claims to
be, becomes ["object", its type] and equals no expected value, unless `refer` and `resolve` give it a form of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_DEEPEST, _LONGEST = 60, 200_000


def encode(value: Any, depth: int = 0, refer: Callable[[Any], list[Any]] | None = None) -> list[Any]:
    kind = type(value)
    if value is None:
        return ["none"]
    if kind is bool:
        return ["bool", value is True]
    if kind is int:
        return ["int", hex(value)]
    if kind is float:
        return ["float", (value + 0.0).hex()]  # one zero
    if kind is complex:
        return ["complex", (value.real + 0.0).hex(), (value.imag + 0.0).hex()]
    if kind is str:
        return ["str", value]
    if kind is bytes:
        return ["bytes", value.hex()]
    if kind in (list, tuple, set, frozenset, dict) and depth < _DEEPEST and len(value) < _LONGEST:
        if kind is dict:
            return ["dict", [[encode(k, depth + 1, refer), encode(v, depth + 1, refer)] for k, v in value.items()]]
        items = [encode(item, depth + 1, refer) for item in value]
        return [kind.__name__, sorted(items, key=repr) if kind in (set, frozenset) else items]
    return refer(value) if refer else ["object", kind.__name__]


def normal(form: Any) -> Any:
    """The form by which values are compared: entries of a dict in a fixed order."""
    if not isinstance(form, list):
        return form
    if len(form) == 2 and form[0] == "dict" and isinstance(form[1], list):
        return ["dict", sorted(map(normal, form[1]), key=repr)]
    return [normal(part) for part in form]


def faithful(form: Any) -> bool:
    """No part of the value was lost, so that an equal form means an equal value."""
    return not isinstance(form, list) or (form[:1] != ["object"] and all(map(faithful, form)))


def decode(form: list[Any], resolve: Callable[[list[Any]], Any] | None = None) -> Any:
    kind, *rest = form
    if kind == "none":
        return None
    content = rest[0]
    if kind == "int":
        return int(content, 16)
    if kind == "float":
        return float.fromhex(content)
    if kind == "complex":
        return complex(float.fromhex(content), float.fromhex(rest[1]))
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "dict":
        return {decode(k, resolve): decode(v, resolve) for k, v in content}
    if kind in ("list", "tuple", "set", "frozenset"):
        items = (decode(item, resolve) for item in content)
        return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)
    return content if kind in ("bool", "str") or resolve is None else resolve(form)
