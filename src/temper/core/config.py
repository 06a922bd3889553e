"""Typed TOML configuration: frozen msgspec Structs, overrides `a.b=c`, errors that name the nearest key.

A table for a plugin has a `kind`; the rest of its keys belong to the plugin's own `Config` (`registry.configure`),
so there is no closed union anywhere.
"""

from __future__ import annotations

import re
import tomllib
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from temper.core.errors import ConfigError, MissingError, nearest

T = TypeVar("T")


def load(path: str | Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Read a TOML file and apply overrides. Raises MissingError, ConfigError."""
    try:
        tree = tomllib.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise MissingError(f"no recipe at {path}: give a path, or a name that `temper list recipes` shows") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    for override in overrides:
        apply(tree, override)
    return tree


def apply(tree: dict[str, Any], override: str) -> None:
    """Set one value in place. `a.b=c`: c is read as TOML, and as a plain string where that fails."""
    key, sep, text = override.partition("=")
    parts = key.strip().split(".")
    if not sep or not all(parts):
        raise ConfigError(f"expected an override like training.batch=16, got {override!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    at: Any = tree
    for n, part in enumerate(parts[:-1]):
        if isinstance(at, list) and part.isdigit() and int(part) < len(at):
            at = at[int(part)]
        elif isinstance(at, dict):
            at = at.setdefault(part, {})
        if not isinstance(at, dict | list):
            raise ConfigError(f"{override!r}: {'.'.join(parts[: n + 1])} is a value, not a table")
    last = parts[-1]
    if isinstance(at, list):
        if not last.isdigit() or int(last) >= len(at):
            raise ConfigError(f"{override!r}: expected an index below {len(at)}, got {last!r}")
        at[int(last)] = value
    else:
        at[last] = value


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
        raise ConfigError(f"{place}: {text.split(' - at ')[0]}") from None


def dump(config: msgspec.Struct) -> str:
    """The resolved configuration as indented JSON, as it is stored with a run."""
    return msgspec.json.format(msgspec.json.encode(config), indent=2).decode()


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
