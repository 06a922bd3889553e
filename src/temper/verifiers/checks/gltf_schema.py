"""The shape of a glTF 2.0 document: which properties objects have, of what type and range, and what they refer to.

The shapes are in `gltf_schema.toml`, whose head says how they are written. What properties mean together (offsets,
formats, counts, data) is in `checks.gltf`.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from temper.verifiers.checks.gltf_asset import Asset


def problems(asset: Asset) -> Iterator[str]:
    """What is wrong with the shape of its document, each as "where: what"."""
    return _wrong(asset.document, "gltf", "", asset.document)


@cache
def _shapes() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


def _wrong(value: Any, shape: str, where: str, document: Any) -> Iterator[str]:
    kind, _, of = shape.partition(" ")
    if kind in _CHECKS:
        if why := _CHECKS[kind](value, of, document):
            yield f"{where}: {why}"
    elif kind[0] == "[":
        yield from _array(value, kind[1:-1], of, where, document)
    elif not isinstance(value, dict) or (kind == "{}" and not value):
        yield f"{where}: expected an object{' that is not empty' if kind == '{}' else ''}"
    elif kind == "{}":
        for name, item in value.items():
            yield from _wrong(item, of, f"{where}/{name[:40]}", document)
    else:
        for key, inner in _shapes()[kind].items():
            name = key.removesuffix("!")
            if name in value:
                yield from _wrong(value[name], inner, f"{where}/{name}", document)
            elif name != key:
                yield f"{where}: {name} is missing"
        yield from _extensions(kind, value, f"{where}/extensions", document)


def _array(value: Any, size: str, of: str, where: str, document: Any) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{where}: expected an array"
    elif not value or (size.isdigit() and len(value) != int(size)):
        yield f"{where}: an array of {len(value)} elements, expected {size if size.isdigit() else 'some'}"
    else:
        for n, item in enumerate(value):
            yield from _wrong(item, of, f"{where}/{n}", document)
        if size == "set" and len(set(map(repr, value))) < len(value):
            yield f"{where}: an element occurs twice"


def _extensions(kind: str, value: dict[str, Any], where: str, document: Any) -> Iterator[str]:
    found = value.get("extensions", {})
    if not isinstance(found, dict) or not all(isinstance(item, dict) for item in found.values()):
        yield f"{where}: expected an object of objects"
        return
    used = document.get("extensionsUsed")
    for name, item in found.items():
        if not isinstance(used, list) or name not in used:
            yield f"{where}: {name[:60]} is not declared in extensionsUsed"
        places = _shapes()["extensions"].get(name, {kind: ""})
        if kind not in places:
            yield f"{where}: {name} does not belong here"
        elif places[kind]:
            yield from _wrong(item, places[kind], f"{where}/{name}", document)


def _is(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _number(value: Any, limits: str, document: Any, kinds: tuple[type, ...] = (int, float)) -> str:
    if not _is(value, *kinds):
        return "expected an integer" if kinds == (int,) else "expected a number"
    said = {name: float(limit) for name, limit in (word.split("=") for word in limits.split())}
    fits = said.get("min", -math.inf) <= value <= said.get("max", math.inf) and value > said.get("above", -math.inf)
    fits = fits and not ("step" in said and value % said["step"])
    return "" if abs(value) < 1e39 and (fits or value == said.get("or")) else f"{value!s:.20} is out of range"


def _reference(value: Any, path: str, document: Any) -> str:
    found = document
    for part in path.split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    if not _is(value, int) or value < 0:
        return "expected an index"
    inside = value < (len(found) if isinstance(found, list) else 0)
    return "" if inside else f"{path.rpartition('/')[2]} has no element {value!s:.20}"


def _string(value: Any, pattern: str, document: Any) -> str:
    fits = isinstance(value, str) and re.match(pattern, value)
    return "" if fits else f"expected a string{f' like {pattern}' if pattern else ''}"


_CHECKS = {
    "integer": lambda value, limits, document: _number(value, limits, document, (int,)),
    "number": _number,
    "ref": _reference,
    "string": _string,
    "boolean": lambda value, of, document: "" if isinstance(value, bool) else "expected true or false",
}
