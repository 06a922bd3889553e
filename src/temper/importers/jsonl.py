"""Chat JSONL: an object a line, {"messages": [...]} or {"prompt": ..., "answer": ...}, with optional `tools` and `id`.

Messages and tools are as in OpenAI's chat API. The expected answer is `answer`, else the content of a last assistant
message, which is never part of the prompt. It becomes the reference {"answer": ...} that the verifiers `exact` and
`math` take.
A line without an `id` is named by a hash of its content, and counted once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.errors import ConfigError, MissingError
from temper.core.task import Message, Provenance, Role, Task, ToolCall, ToolSpec
from temper.importers import record, unread


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """domain: that will give the tasks their world. licence: of the data, which a file does not tell."""

    domain: str = "imported"
    licence: str = "unknown"


def create(config: Config | None = None) -> ChatLines:
    return ChatLines(config or Config())


class _Function(Struct):
    name: str
    arguments: str | dict[str, Any] = "{}"


class _Call(Struct):
    function: _Function
    id: str = ""
    type: str = "function"


class _Message(Struct):
    role: Role
    content: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str = ""
    name: str = ""


class _Tool(Struct):
    function: ToolSpec
    type: str = "function"


class _Row(Struct):
    messages: list[_Message] | None = None
    prompt: str | None = None
    answer: str | int | float | None = None
    tools: list[_Tool] | None = None
    id: str | int | None = None


class ChatLines:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._lost: Counter[str] = Counter()

    def tasks(self, source: str) -> Iterator[Task]:
        """Raises MissingError, and ConfigError with file and line."""
        path, lines = Path(source), {}
        if not path.is_file():
            raise MissingError(f"expected a file of JSON lines at {path}")
        with path.open("rb") as file:
            for n, line in enumerate(file, 1):
                if not line.strip():
                    continue
                task, named = self._task(line, path, n)
                if task.id not in lines:
                    lines[task.id] = n
                    yield task
                elif named:
                    raise ConfigError(f"{path}:{n}: id {task.id!r} was given to line {lines[task.id]} already")
                else:
                    self._lost["repeated lines, left out"] += 1

    def loss(self) -> list[str]:
        return [f"{what} ({n} times)" for what, n in self._lost.items()]

    def _task(self, line: bytes, path: Path, n: int) -> tuple[Task, bool]:
        """The task of a line, and whether the line names it."""
        where = f"{path}:{n}"
        try:
            tree = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ConfigError(f"{where}: expected a JSON object: {error}") from None
        row = record(_Row, tree, where)
        if (row.messages is None) == (row.prompt is None):
            raise ConfigError(f"{where}: expected either 'messages' or 'prompt', got {', '.join(tree)}")
        self._lost.update(key for key, _ in unread(row, tree))
        for message, inner in zip(row.messages or (), tree.get("messages") or (), strict=True):
            self._lost.update(f"messages.{key}" for key, _ in unread(message, inner))
        messages = _messages(row.messages, where) if row.messages is not None else [Message("user", row.prompt or "")]
        said = messages.pop().content if messages and messages[-1].role == "assistant" else ""
        if said and row.answer is not None:
            self._lost["assistant message beside an answer"] += 1
        answer = said if row.answer is None else str(row.answer)
        if not answer.strip() or not any(m.role == "user" and m.content.strip() for m in messages):
            raise ConfigError(
                f"{where}: expected a user message, and an 'answer' or a last assistant message with text"
            )
        digest = hashlib.sha256(msgspec.json.encode((messages, row.tools, answer))).hexdigest()[:16]
        task = Task(
            id=f"{path.stem}-{digest}" if row.id in (None, "") else str(row.id),
            domain=self._config.domain,
            messages=tuple(messages),
            tools=tuple(tool.function for tool in row.tools or ()),
            reference={"answer": answer},
            provenance=Provenance(source=str(path), licence=self._config.licence),
        )
        return task, row.id not in (None, "")


def _messages(given: list[_Message], where: str) -> list[Message]:
    names = {call.id: call.function.name for message in given for call in message.tool_calls or ()}
    return [
        Message(
            message.role,
            message.content or "",
            tuple(ToolCall(c.function.name, _arguments(c.function, where), c.id) for c in message.tool_calls or ()),
            message.name or names.get(message.tool_call_id, ""),
        )
        for message in given
    ]


def _arguments(function: _Function, where: str) -> dict[str, Any]:
    """An object, or the JSON text of one."""
    if isinstance(function.arguments, dict):
        return function.arguments
    try:
        return msgspec.json.decode(function.arguments, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{where}: arguments of a call of {function.name!r}: {error}") from None
