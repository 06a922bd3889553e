"""What every way of writing tool calls checks: known name, plain bounded JSON values. Sampled text is hostile.

A style is a module (`pythonic`, `hermes`) with `describe(tools)`, `write(message, tools)`, `read(text, tools)` and
`results(outputs)`. Whether the arguments fit the tool's schema is checked where the tool runs (`rollouts.toolsets`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from temper.core.errors import nearest
from temper.core.task import ToolCall, ToolSpec

MAX_CHARS = 16 << 10  # of one call
MAX_DEPTH = 8


class CallError(ValueError):
    """A call that does not parse; its text tells the model what was expected."""


def find(name: str, tools: Sequence[ToolSpec]) -> ToolSpec:
    for spec in tools:
        if spec.name == name:
            return spec
    raise CallError(f"no tool is called {name[:100]!r}; {nearest(name[:100], [t.name for t in tools])}")


def checked(name: str, arguments: dict[str, Any], tools: Sequence[ToolSpec]) -> ToolCall:
    find(name, tools)
    _check(arguments, MAX_DEPTH)
    return ToolCall(name, arguments)


def _check(value: Any, depth: int) -> None:
    """Only what JSON and msgpack can carry: finite numbers, integers of 64 bits, valid Unicode."""
    if depth < 0:
        raise CallError(f"arguments are nested deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise CallError("a string holds half a surrogate pair, which is not valid Unicode") from None
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CallError(f"expected strings as keys, got {key!r}")
            _check(key, depth)
            _check(item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            _check(item, depth - 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise CallError("expected finite numbers")
    elif isinstance(value, int):  # bool too
        if not -(1 << 63) <= value < 1 << 63:
            raise CallError("expected integers of at most 64 bits")
    elif value is not None:
        raise CallError(f"expected plain values, got {type(value).__name__}")
