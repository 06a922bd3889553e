"""Typed TOML configuration: frozen msgspec Structs, overrides `a.b=c`, errors that name the nearest key.

A table for a plugin has a `kind`; the rest of its keys belong to the plugin's own `Config` (`registry.configure`),
so there is no closed union anywhere.
"""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from temper.core.errors import ConfigError, MissingError, nearest

T = TypeVar("T")
Amount = Annotated[float, Meta(ge=0, le=1e18)]  # finite; NaN is in no bounds
Positive = Annotated[float, Meta(gt=0, le=1e18)]
Count = Annotated[int, Meta(ge=0, le=2**53)]  # as far as a float counts
Some = Annotated[int, Meta(ge=1, le=2**53)]


def load(path: str | Path, overrides: Sequence[str] = (), what: str = "TOML file") -> dict[str, Any]:
    """Read a TOML file and apply overrides. `what` it is, for errors. Raises MissingError, ConfigError."""
    try:
        tree = tomllib.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise MissingError(f"no {what} at {path}: give the path of a .toml file that is there") from None
    except OSError as error:
        raise ConfigError(f"expected a {what} at {path}, which cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    return apply(tree, overrides)


def apply(tree: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """The tree with values set in place, each as in `a.b=c`: c is read as TOML, as a plain string where that fails."""
    for override in overrides:
        _set(tree, override)
    return tree


def _set(tree: dict[str, Any], override: str) -> None:
    key, sep, text = override.partition("=")
    parts = key.strip().split(".")
    if not sep or not all(parts):
        raise ConfigError(f"expected a setting like evaluation.tasks=40, got {override!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    at: Any = tree
    for n, part in enumerate(parts):
        if not isinstance(at, dict | list):
            raise ConfigError(f"{override!r}: {'.'.join(parts[:n])} is a value, not a table")
        if isinstance(at, list) and not (part.isdecimal() and int(part) < len(at)):
            raise ConfigError(f"{override!r}: expected an index below {len(at)} after {parts[n - 1]}, got {part!r}")
        place: Any = int(part) if isinstance(at, list) else part
        if n == len(parts) - 1:
            at[place] = value
        else:
            at = at.setdefault(place, {}) if isinstance(at, dict) else at[place]


def build(kind: type[T], tree: Any, where: str = "recipe") -> T:
    """Convert plain data to `kind`. Raises ConfigError with the path, and the nearest name for an unknown key."""
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        at = re.search(r" - at `\$\.?(.*?)`", text)
        path = at[1] if at else ""
        place = f"{where}: {path}" if path else where
        unknown = re.search(r"unknown field `(.*?)`", text)
        if unknown:
            raise ConfigError(
                f"{place}: unknown key {unknown[1]!r}; {nearest(unknown[1], _fields(kind, path))}"
            ) from None
        said = text.split(" - at ")[0]
        if said.startswith("Expected") and ", got" not in said:  # a bound
            said += f", got {_value(tree, path)!r}"
        raise ConfigError(f"{place}: {said}") from None


def dump(config: msgspec.Struct) -> str:
    """The resolved configuration as indented JSON, as it is stored with a run."""
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode()


def _value(tree: Any, path: str) -> Any:
    """What is at `path` of plain data; the whole table where msgspec does not say which key it was."""
    for part in re.findall(r"[^.\[\]]+", path):
        tree = tree[int(part)] if isinstance(tree, list | tuple) else tree[part]
    return tree


def _fields(kind: Any, path: str) -> list[str]:
    """Field names of the Struct at `path` (dots and [...]) below `kind`."""
    at = kind
    for part in [p for p in re.split(r"\.", path) if p]:
        name, index = re.match(r"([^\[]*)((?:\[.*?\])*)", part).groups()  # type: ignore[union-attr]
        hints = typing.get_type_hints(at) if _is_struct(at) else {}
        at = hints.get(name, at)
        for _ in range(index.count("[")):
            args = [a for a in typing.get_args(at) if a is not Ellipsis]
            at = args[-1] if args else at
        at = next((a for a in typing.get_args(at) if _is_struct(a)), at)
    return list(at.__struct_fields__) if _is_struct(at) else []


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
