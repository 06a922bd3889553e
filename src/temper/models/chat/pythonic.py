"""Tool calls as lines of a Python session, the style that costs the fewest tokens.

    >>> edit("m.py", "a - b", "a + b")

A line that begins with the mark is a call: a plain name, positional or keyword literals, nothing else. Text may stand
before the first call and not after it, so that a model cannot make up a tool's output. Tools are introduced by their
signatures in one line; types and descriptions are left to the task's own words.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Sequence
from typing import Any

from temper.core.task import Message, ToolCall, ToolSpec
from temper.models.chat.calls import MAX_CHARS, CallError, checked, find

MARK = ">>>"


def describe(tools: Sequence[ToolSpec]) -> str:
    return f"{MARK} " + " ".join(_signature(spec) for spec in tools)


def write(message: Message, tools: Sequence[ToolSpec]) -> str:
    lines = [message.content] if message.content else []
    return "\n".join(lines + [f"{MARK} {_call(call, tools)}" for call in message.calls])


def read(text: str, tools: Sequence[ToolSpec]) -> Message:
    """Raises CallError."""
    lines = text.split("\n")
    first = next((n for n, line in enumerate(lines) if line.startswith(MARK)), len(lines))
    calls = []
    for line in lines[first:]:
        if line.startswith(MARK):
            calls.append(_parse(line[len(MARK) :].strip(), tools))
        elif line.strip():
            raise CallError(f"expected nothing after a call, got {line[:100]!r}; wait for the result")
    return Message("assistant", "\n".join(lines[:first]), tuple(calls))


def results(outputs: Sequence[str]) -> list[tuple[str, str]]:
    """Tool outputs as turns: (role, text)."""
    return [("tool", output) for output in outputs]


def _signature(spec: ToolSpec) -> str:
    required = spec.parameters.get("required", ())
    properties = spec.parameters.get("properties", {})
    parts = [n if n in required else f"{n}={_literal(schema.get('default'))}" for n, schema in properties.items()]
    return f"{spec.name}({', '.join(parts)})"


def _call(call: ToolCall, tools: Sequence[ToolSpec]) -> str:
    """Arguments that follow the signature's order from its start are positional, the rest are named."""
    order = list(next((t for t in tools if t.name == call.name), ToolSpec(call.name)).parameters.get("properties", {}))
    parts = []
    for n, (name, value) in enumerate(call.arguments.items()):
        positional = order[: n + 1] == list(call.arguments)[: n + 1]
        parts.append(_literal(value) if positional else f"{name}={_literal(value)}")
    return f"{call.name}({', '.join(parts)})"


def _literal(value: Any) -> str:
    if isinstance(value, str):
        single = '"' in value and "'" not in value
        return repr(value) if single else json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(k)}: {_literal(v)}' for k, v in value.items())}}}"
    return repr(value)


def _parse(source: str, tools: Sequence[ToolSpec]) -> ToolCall:
    if len(source) > MAX_CHARS:
        raise CallError(f"expected a call of at most {MAX_CHARS} characters, got {len(source)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" in a string is the model's affair, not a line on our terminal
            node = ast.parse(source, mode="eval").body
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                raise CallError(f"expected a call like {_signature(tools[0])}, got {source[:100]!r}")
            named = [(k.arg or "**", ast.literal_eval(k.value)) for k in node.keywords]
            given = [ast.literal_eval(argument) for argument in node.args]
    except CallError:
        raise
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        why = getattr(error, "msg", None) or "only literals may be arguments"
        raise CallError(f"expected a call like {_signature(tools[0])}, got {source[:100]!r}: {why}") from None
    spec = find(node.func.id, tools)
    order = list(spec.parameters.get("properties", {}))
    if len(given) > len(order):
        raise CallError(f"expected {_signature(spec)}, got {len(given)} arguments")
    pairs = [*zip(order, given, strict=False), *named]
    if len(dict(pairs)) < len(pairs) or "**" in dict(pairs):
        raise CallError(f"expected {_signature(spec)}, each argument once")
    return checked(spec.name, dict(pairs), tools)
