"""What is asked: messages, tools, limits, the sandbox that is needed, the task that holds them, and known answers.

A task's `reference` is private: it reaches the verifier and nothing else (no prompt, no agent sandbox, no log).
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

Role = Literal["system", "user", "assistant", "tool"]
Split = Literal["train", "heldout"]


class ToolCall(Struct, frozen=True):
    """One call that a model asks for. `arguments` are keyword arguments; values are plain JSON."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    id: str = ""


class Message(Struct, frozen=True):
    """One chat message. `malformed` is set on an assistant message whose call did not parse, and says why.

    `name` is the tool's name on a tool message.
    """

    role: Role
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    name: str = ""
    malformed: str = ""


class ToolSpec(Struct, frozen=True):
    """A tool as the model sees it. `parameters` is a JSON schema of type object."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of one episode. Running into any of them is the policy's own doing (`core.blame`)."""

    turns: int = 8  # assistant messages
    tokens: int = 1024  # sampled tokens over the whole episode
    turn_tokens: int = 256  # sampled tokens of one assistant message
    seconds: float = 600.0  # wall clock of the episode, queueing excluded
    tool_seconds: float = 10.0  # wall clock of one tool call


class SandboxSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a sandbox must offer and must enforce. Sizes are bytes, times seconds.

    `files` maps paths relative to the working directory to their content. `require` names limits that must be
    enforced hard (see `Capability`); a backend that cannot do so refuses. `base`: "host", or "image:" and the hash of a
    built image (`temper sandbox build`). `network`: "none", or the hosts that may be reached, as host or host:port
    (ports 80 and 443 where none is named).
    """

    base: str = "host"
    files: dict[str, bytes] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    network: Literal["none"] | tuple[str, ...] = "none"
    memory: int = 512 << 20
    disk: int = 64 << 20
    file_size: int = 32 << 20
    pids: int = 64
    open_files: int = 1024  # of one process
    cpu_seconds: float = 60.0
    output: int = 64 << 10  # bytes kept of each stream of one command; more ends the command
    require: tuple[str, ...] = ()


class Provenance(Struct, frozen=True, kw_only=True):
    """Where a task comes from: `source` (a generator's name or an address), its licence, and its seed."""

    source: str
    licence: str = "Apache-2.0"
    seed: int | None = None


class Task(Struct, frozen=True, kw_only=True):
    """One verifiable piece of work.

    `start` is what the environment needs to begin (files, database rows, simulator state) and is not private.
    `artifacts` are paths (or state names) that are handed to the grader; nothing else leaves the agent's sandbox.
    """

    id: str
    domain: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    sandbox: SandboxSpec | None = None
    limits: Limits = Limits()
    start: dict[str, Any] = field(default_factory=dict)
    artifacts: tuple[str, ...] = ()
    reference: Any = None
    split: Split = "train"
    level: int = 1
    provenance: Provenance | None = None


class Case(Struct, frozen=True, kw_only=True):
    """An answer to a task whose grade is known, for auditing the task's verifier.

    `why` names the surface form of a right answer, or the one mutation that made it wrong. `source`: who says so:
    the domain's author, an outsider's data, or a model's sample that a second, different rule has judged.
    """

    right: bool
    why: str
    answer: str = ""  # the final assistant message
    artifacts: dict[str, bytes] = field(default_factory=dict)
    source: Literal["author", "outside", "sample"] = "author"
