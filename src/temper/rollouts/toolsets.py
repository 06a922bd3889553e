"""Toolsets: typed, documented methods over a state Struct. One object serves training, evaluation and MCP.

A subclass names its `State` and marks methods with `@tool`. The signature gives the JSON schema, the first line of the
docstring the description. Arguments are checked strictly, output is bounded, and a wrong call is answered with a text
that begins "error:". Everything that must survive `save` and `fork` lives in `state`.

Tools that run what the model wrote do so through `self.sandbox`, never in this process. Plain (not async) tools run on
the event loop and therefore take milliseconds. Opening and closing the sandbox is the environment's business.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, ClassVar, TypeVar, get_type_hints

import msgspec
from msgspec import Struct

from temper.core.errors import ConfigError, nearest
from temper.core.protocols import Sandbox
from temper.core.task import ToolCall, ToolSpec

F = TypeVar("F", bound=Callable[..., Any])


class ToolError(Exception):
    """Raised by a tool that was used wrongly; its text is shown to the model after "error: "."""


class NoState(Struct):
    """The state of a toolset that keeps none."""


def tool(method: F) -> F:
    """Mark a method of a `Toolset` as a tool. It returns text, or plain data that is shown as JSON; None shows "ok"."""
    method.__temper_tool__ = True  # type: ignore[attr-defined]
    return method


class Toolset:
    """Base class (`core.protocols.Toolset`). The environment binds `sandbox` and `limit` before the first call."""

    State: ClassVar[type[Struct]] = NoState
    output_bytes: ClassVar[int] = 4096  # of one call's output, shown to the model

    sandbox: Sandbox
    limit: float = 10.0  # seconds of one call

    def __init__(self, state: Struct | None = None) -> None:
        self.state: Any = self.State() if state is None else state
        self._began = time.monotonic()

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(spec for spec, _ in _tools(type(self)).values())

    async def call(self, call: ToolCall) -> str:
        known = _tools(type(self))
        if call.name not in known:
            return f"error: no tool is called {call.name!r}; {nearest(call.name, known)}"
        spec, arguments = known[call.name]
        try:
            checked = msgspec.convert(call.arguments, arguments)
        except msgspec.ValidationError as error:
            return f"error: expected {signature(spec)}: {str(error).replace('Object', 'call')}"
        self._began = time.monotonic()
        try:
            output = getattr(self, call.name)(**msgspec.structs.asdict(checked))
            if isinstance(output, Awaitable):
                output = await output
        except ToolError as error:
            output = f"error: {error}"
        return bounded(_text(output), self.output_bytes)

    @property
    def seconds(self) -> float:
        """What is left of the running call's limit; a tool hands it to each `sandbox.exec`."""
        return max(0.01, self.limit - (time.monotonic() - self._began))

    @property
    def done(self) -> bool:
        """Whether the episode is over; a toolset with a tool that submits overrides this."""
        return False

    def artifacts(self) -> dict[str, bytes]:
        """Artifacts that come out of the state; files of the sandbox are fetched by the environment."""
        return {}


def signature(spec: ToolSpec) -> str:
    """A tool in one line: `edit(path: string, old: string, count: integer = 1)`."""
    required = spec.parameters.get("required", ())
    parts = []
    for name, schema in spec.parameters.get("properties", {}).items():
        kind = " | ".join(map(repr, schema["enum"])) if "enum" in schema else schema.get("type", "any")
        parts.append(f"{name}: {kind}" if name in required else f"{name}: {kind} = {schema.get('default')!r}")
    return f"{spec.name}({', '.join(parts)})"


def bounded(text: str, limit: int) -> str:
    """`text` in at most `limit` bytes of UTF-8 (and a note): its beginning and, as errors come last, its end."""
    if len(text) <= limit and len(text.encode("utf-8", "replace")) <= limit:
        return text.encode("utf-8", "replace").decode()
    half = limit // 2
    head = text[:half].encode("utf-8", "replace")[:half].decode("utf-8", "ignore")
    tail = text[-half:].encode("utf-8", "replace")[-half:].decode("utf-8", "ignore")
    return f"{head}\n[{len(text) - len(head) - len(tail)} characters left out]\n{tail}"


def _text(output: Any) -> str:
    if isinstance(output, str):
        return output
    return "ok" if output is None else msgspec.json.encode(output).decode()


@cache
def _tools(kind: type[Toolset]) -> dict[str, tuple[ToolSpec, type[Struct]]]:
    """Tools of a class by name, in order of definition: what the model sees, and the Struct its arguments must fit."""
    methods: dict[str, Callable[..., Any]] = {}
    for base in reversed(kind.__mro__):
        methods |= {name: m for name, m in vars(base).items() if hasattr(m, "__temper_tool__")}
    return {name: _describe(kind, name, method) for name, method in methods.items()}


def _describe(kind: type[Toolset], name: str, method: Callable[..., Any]) -> tuple[ToolSpec, type[Struct]]:
    if name in vars(Toolset):
        raise ConfigError(f"{kind.__name__}.{name}: the base class uses this name, call the tool something else")
    hints = get_type_hints(method, include_extras=True)
    fields: list[Any] = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.name not in hints or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"{kind.__name__}.{name}: expected a named parameter with a type, got {parameter}")
        default = () if parameter.default is parameter.empty else (parameter.default,)
        fields.append((parameter.name, hints[parameter.name], *default))
    arguments = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    (reference,), definitions = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema = definitions.pop(reference["$ref"].rpartition("/")[2])
    schema.pop("title", None)
    if definitions:
        schema["$defs"] = definitions
    description = (inspect.getdoc(method) or "").partition("\n")[0]
    return ToolSpec(name, description, schema), arguments
