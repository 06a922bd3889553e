"""Python values as JSON that keeps their types: what the code verifier compares, and how arguments travel.

Its source is also run inside the sandbox, in front of `checks.driver` or `checks.remote`, so that both sides share one
definition: standard library only. Only exact built-in types have a form; everything else, however equal it claims to
be, becomes ["object", its type] and equals no expected value, unless `refer` and `resolve` give it a form of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_DEEPEST, _LONGEST = 60, 200_000
_WRITTEN: dict[type, Callable[[Any], Any]] = {
    bool: bool, int: hex, float: lambda value: (value + 0.0).hex(), str: str, bytes: bytes.hex,  # one zero
}  # fmt: skip
_READ = {"int": lambda text: int(text, 16), "float": float.fromhex, "bytes": bytes.fromhex}
_SEQUENCES = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}


def encode(value: Any, depth: int = 0, refer: Callable[[Any], list[Any]] | None = None) -> list[Any]:
    kind = type(value)
    if value is None:
        return ["none"]
    if kind in _WRITTEN:
        return [kind.__name__, _WRITTEN[kind](value)]
    if kind is complex:
        return ["complex", (value.real + 0.0).hex(), (value.imag + 0.0).hex()]
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
    if kind in _READ:
        return _READ[kind](content)
    if kind == "complex":
        return complex(*map(float.fromhex, rest))
    if kind == "dict":
        return {decode(k, resolve): decode(v, resolve) for k, v in content}
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode(item, resolve) for item in content)
    return content if kind in ("bool", "str") or resolve is None else resolve(form)
