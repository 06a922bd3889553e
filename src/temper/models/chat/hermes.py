"""Tool calls as JSON in `<tool_call>` tags and schemas in the system message: the Hermes style, worded as Qwen2.5 does.

Text may stand before the first call and not between or after calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.task import Message, ToolCall, ToolSpec
from temper.models.chat.calls import MAX_CHARS, CallError, checked

_INTRODUCTION = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{schemas}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class _Call(Struct, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any]


def describe(tools: Sequence[ToolSpec]) -> str:
    schemas = [{"type": "function", "function": msgspec.structs.asdict(spec)} for spec in tools]
    return _INTRODUCTION.format(schemas="\n".join(_json(schema) for schema in schemas))


def write(message: Message, tools: Sequence[ToolSpec]) -> str:
    parts = [message.content] if message.content else []
    for call in message.calls:
        parts.append(f"<tool_call>\n{_json({'name': call.name, 'arguments': call.arguments})}\n</tool_call>")
    return "\n".join(parts)


def read(text: str, tools: Sequence[ToolSpec]) -> Message:
    """Raises CallError."""
    content, *bodies = re.split(r"\n?<tool_call>", text)
    calls = []
    for body in bodies:
        inside, closed, rest = body.partition("</tool_call>")
        if not closed or rest.strip():
            raise CallError("expected </tool_call> after each call and nothing behind it; wait for the result")
        calls.append(_parse(inside, tools))
    return Message("assistant", content, tuple(calls))


def results(outputs: Sequence[str]) -> list[tuple[str, str]]:
    """Tool outputs as turns: (role, text). All that were given together stand in one user turn."""
    return [("user", "\n".join(f"<tool_response>\n{output}\n</tool_response>" for output in outputs))]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parse(source: str, tools: Sequence[ToolSpec]) -> ToolCall:
    if len(source) > MAX_CHARS:
        raise CallError(f"expected a call of at most {MAX_CHARS} characters, got {len(source)}")
    try:
        call = msgspec.json.decode(source, type=_Call)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CallError(
            f'expected {{"name": ..., "arguments": {{...}}}}, got {source.strip()[:100]!r}: {error}'
        ) from None
    return checked(call.name, call.arguments, tools)
