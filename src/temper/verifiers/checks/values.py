"""Python values as JSON that keeps their types: what the code verifier compares, and how arguments travel.

Its source is also run inside the sandbox, in front of `checks.driver`, so that both sides share one definition:
standard library only. Only exact built-in types have a form; everything else, however equal
it claims to be, becomes ["object", its type] and equals no expected value.
"""

from __future__ import annotations

from typing import Any

_DEEPEST, _LONGEST = 60, 200_000


def encode(value: Any, depth: int = 0) -> list[Any]:
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
        return ["complex", value.real.hex(), value.imag.hex()]
    if kind is str:
        return ["str", value]
    if kind is bytes:
        return ["bytes", value.hex()]
    if kind in (list, tuple, set, frozenset, dict) and depth < _DEEPEST and len(value) < _LONGEST:
        if kind is dict:
            return ["dict", sorted(([encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()), key=repr)]
        items = [encode(item, depth + 1) for item in value]
        return [kind.__name__, sorted(items, key=repr) if kind in (set, frozenset) else items]
    return ["object", kind.__name__]


def faithful(form: Any) -> bool:
    """No part of the value was lost, so that an equal form means an equal value."""
    return not isinstance(form, list) or (form[:1] != ["object"] and all(map(faithful, form)))


def decode(form: list[Any]) -> Any:
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
        return {decode(k): decode(v) for k, v in content}
    if kind in ("list", "tuple", "set", "frozenset"):
        return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(decode, content))
    return content
