"""Arguments with alternatives: does a call give values that are allowed? The rule of BFCL's checker, over JSON schemas.

`options` maps every parameter to the values that it may have; "" among them says that it may be left out, or be an
empty list. Required parameters have to be there, and others than those of `options` must not. Types are as declared, an
integer may stand for a number, and a value of another type counts only if the options have that type. Strings compare
without capitals, spaces and , . / - _ * ^; so do those inside lists and objects, whose keys have options of their own.
"""

from __future__ import annotations

import re
from typing import Any

_TYPES: dict[str, type] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict, "any": str,
}  # fmt: skip
_LOOSE = re.compile(r"[ ,./\-_*^]")


def allowed(arguments: dict[str, Any], options: dict[str, list[Any]], schema: dict[str, Any]) -> bool:
    properties = schema.get("properties", {})
    if any(name not in arguments for name in schema.get("required", ())):
        return False
    if any(name not in arguments and "" not in values for name, values in options.items()):
        return False
    return all(
        name in properties and name in options and _accepted(value, options[name], properties[name])
        for name, value in arguments.items()
    )


def _accepted(value: Any, options: list[Any], declared: dict[str, Any]) -> bool:
    kind = _TYPES.get(declared.get("type", "any"), str)
    items = _TYPES.get(declared.get("items", {}).get("type", "any"), str) if kind is list else None
    if kind is float and type(value) is int:
        value = float(value)
    given = _type(options)
    if type(value) is kind and _items_typed(value, options, items):
        other = given is not None and given is not kind
    elif type(value) is given:
        other = True  # such as the name of a variable where a number is declared
    else:
        return False
    if other:
        return value in options
    if kind is dict:
        return any(_entries(value, option) for option in options if option != "")
    if items is dict:
        return any(
            len(value) == len(option) and all(_entries(*pair) for pair in zip(value, option, strict=True))
            for option in options
            if isinstance(option, list)
        )
    if kind is list:
        options = [[] if option == "" else option for option in options]
    return _loose(value) in [_loose(option) for option in options if type(option) is kind or kind is not str]


def _items_typed(value: Any, options: list[Any], items: type | None) -> bool:
    """Every item of a list has the declared type, or that of the items of one option."""
    if items is None:
        return True
    return any(
        all(type(item) is items or type(item) is _type(option if isinstance(option, list) else []) for item in value)
        for option in options
    )


def _type(options: list[Any]) -> type | None:
    return next((type(option) for option in options if option != ""), None)


def _entries(value: Any, options: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(options, dict):
        return False
    return all(
        key in options and _loose(entry) in [_loose(option) for option in options[key]] for key, entry in value.items()
    ) and all(key in value or "" in entries for key, entries in options.items())


def _loose(value: Any) -> Any:
    if isinstance(value, list):
        return [_loose(item) if isinstance(item, str) else item for item in value]
    return _LOOSE.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value
