"""The contracts between rooms. Structural: a class (or, where noted, a module) that has the methods is one.

Arrays: ids int32 (T,), logprobs float32 (T,), versions int32 (T,).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np
from msgspec import Meta, Struct

from temper.core.config import Amount, Count, Some
from temper.core.task import Message, SandboxSpec, Split, Task, ToolCall, ToolSpec
from temper.core.trace import Event, Exit, Group, Segment, Trace, Verdict

Enforcement = Literal["hard", "advisory", "none"]


class SamplingParams(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to sample. temperature 0 is greedy; top_k 0 and top_p 1 are off. `stop_ids` end the output and belong to it.

    max_tokens: of a turn; a task's own limits (`task.Limits`) are usually lower, and count as well.

    Behaviour log-probs are those of the distribution that was sampled from before top-k and top-p, at `temperature`
    (at temperature 0: at 1), so that a trainer can recompute them.
    """

    max_tokens: Some = 4096
    temperature: Amount = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Count = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    seed: int = 0


class Chunk(Struct, frozen=True, eq=False):
    """Sampled tokens, in order. `stop` is set on the last chunk of a request."""

    ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    stop: Literal["", "stop", "length", "context", "aborted"] = ""


class Engine(Protocol):
    """Samples tokens. Knows nothing of chats, tools or tasks."""

    @property
    def version(self) -> int: ...

    def generate(self, ids: np.ndarray, params: SamplingParams, request: str = "") -> AsyncIterator[Chunk]:
        """Continue `ids`. `request` is the name by which it can be aborted. Raises FaultError("engine-lost")."""
        ...

    async def score(self, ids: np.ndarray, top_k: int = 0) -> tuple[np.ndarray, Any]:
        """Log-prob of each token given those before it (T,), 0 for the first; top-k (ids, log-probs) or None."""
        ...

    def abort(self, request: str) -> None: ...

    async def publish(self, weights: Mapping[str, Any], version: int, mode: str = "recompute") -> None:
        """Take new trainable weights between two steps. `mode`: running requests `recompute` or `keep` their cache."""
        ...

    def pin(self, ids: np.ndarray) -> str:
        """Keep this prefix cached until `release(handle)`."""
        ...

    def release(self, handle: str) -> None: ...

    async def close(self) -> None: ...


@runtime_checkable
class Metered(Protocol):
    """A separate capability of some engines and others: seconds by stage that they have worked, however many waited."""

    def busy(self) -> Mapping[str, float]: ...


class Reply(Struct, frozen=True, eq=False):
    """An assistant message and the segments that this call added: what was given since, and what was sampled.

    `segments[0].parent` is -1 when a new branch had to be opened, else the index of the last one of the history.
    """

    message: Message
    segments: tuple[Segment, ...]
    stop: Literal["stop", "length", "context", "aborted"] = "stop"
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


class ChatModel(Protocol):
    """Messages and tools in, a message out. Policies, judges, simulated users, teachers, endpoints."""

    name: str

    async def reply(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        params: SamplingParams,
        history: Sequence[Segment] = (),
    ) -> Reply:
        """`history` is the path so far; its messages are a prefix of `messages`, unless history was rewritten."""
        ...


class Sandbox(Protocol):
    """One isolated place. Paths are relative to its working directory. Raises FaultError("backend-lost").

    `exec` never raises for what the command did: that is in the `Exit`.
    """

    id: str
    capabilities: Mapping[str, Enforcement]

    async def exec(
        self, argv: Sequence[str], *, stdin: bytes = b"", seconds: float = 10.0, env: Mapping[str, str] | None = None
    ) -> Exit: ...

    async def put(self, path: str, content: bytes) -> None: ...

    async def get(self, path: str) -> bytes:
        """Content of a regular file; FileNotFoundError if there is none, never through a symbolic link."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Snapshots(Protocol):
    """A separate capability of some sandboxes: states of the files that can be gone back to, and copied.

    Raises LookupError for an id that this sandbox does not know. A fork knows the one that it began with.
    """

    async def snapshot(self) -> str:
        """What runs goes on, and cannot tell."""
        ...

    async def rollback(self, snapshot: str) -> None:
        """Ends what runs."""
        ...

    async def fork(self, snapshot: str, n: int) -> list[Sandbox]:
        """New sandboxes that begin there, with nothing running."""
        ...


class Session(Protocol):
    """A shell or a Python that keeps its state between turns. `ended` is how it ended, None while it goes on."""

    ended: Exit | None

    async def send(self, text: str, seconds: float = 10.0) -> Exit:
        """One turn: its streams, its status, its cause. Past `seconds` it is interrupted, then killed."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class Sessions(Protocol):
    """A separate capability of some sandboxes."""

    async def session(self, language: Literal["shell", "python"] = "shell") -> Session: ...


class SandboxBackend(Protocol):
    """What `registry.find("sandboxes", NAME).create(config)` gives."""

    async def open(self, spec: SandboxSpec) -> Sandbox: ...

    def capabilities(self) -> Mapping[str, Enforcement]: ...

    async def close(self) -> None: ...


class Observation(Struct, frozen=True):
    """What the environment says after an action. `done` ends the episode."""

    messages: tuple[Message, ...] = ()
    done: bool = False


class Resources(Struct, frozen=True, eq=False):
    """What an episode is given from outside, so that it can be replayed: sandboxes, clock, random numbers."""

    sandboxes: SandboxBackend
    clock: Callable[[], float]
    rng: random.Random


class Environment(Protocol):
    """The world of one episode: single-use and asynchronous."""

    async def start(self) -> Observation: ...

    async def step(self, action: Message) -> Observation: ...

    async def artifacts(self) -> dict[str, bytes]:
        """The task's declared artifacts, and no other; one that is missing is left out."""
        ...

    async def save(self) -> bytes: ...

    async def restore(self, saved: bytes) -> None: ...

    async def fork(self, n: int) -> list[Environment]: ...

    async def close(self) -> None: ...


class Toolset(Protocol):
    """Typed, documented methods over a state Struct; the same object serves training, evaluation and MCP."""

    state: Struct

    def specs(self) -> tuple[ToolSpec, ...]: ...

    async def call(self, call: ToolCall) -> str:
        """The tool's output. A wrong call is answered with a text that begins "error:", never an exception."""
        ...

    @property
    def done(self) -> bool: ...


class Verifier(Protocol):
    """Grades. Never runs model output in its own process, never blocks the event loop, never raises for an answer."""

    name: str
    hash: str

    async def grade(self, task: Task, trace: Trace, artifacts: Mapping[str, bytes]) -> Verdict: ...


class Algorithm(Protocol):
    """How rewards become advantages. A module may be one: `needs` and `advantages` at its top level."""

    needs: frozenset[str]  # of {"reference", "values", "teacher", "proximal"}

    def advantages(self, groups: Sequence[Group]) -> list[np.ndarray]:
        """For each group an entry a sample: a number, or float32 (T,) by token of its path.

        Masked ones are NaN; all 0 where a group teaches nothing. See `training.algorithms` for settings and values.
        """
        ...


class Loss(Protocol):
    """Loss and diagnostics by token over streams of equal shape (K,), torch tensors. A module may be one.

    The trainer multiplies by the component's stream `weight`, which is already divided by its global count, so that
    the sum over micro-batches and ranks is the loss.
    """

    streams: frozenset[str]

    def loss(self, logprobs: Any, streams: Mapping[str, Any], config: Any) -> tuple[Any, dict[str, Any]]: ...


class Handle(Protocol):
    """A worker that an executor started."""

    async def call(self, method: str, *args: Any, seconds: float) -> Any:
        """FaultError("worker-lost") when it died, FaultError("wait-limit") past the limit (and it is killed)."""
        ...

    async def close(self) -> None: ...


class Executor(Protocol):
    """Places workers: threads or processes here, actors on a cluster."""

    async def spawn(self, factory: str, config: Mapping[str, Any], resources: Mapping[str, float]) -> Handle:
        """`factory` is a dotted path "package.module:callable" that is called with `config` in the worker."""
        ...

    async def close(self) -> None: ...


class Domain(Protocol):
    """A family of tasks: a seeded stream for each split and level, their world, their grader and their gold answer."""

    name: str
    levels: tuple[int, ...]

    def tasks(self, split: Split, level: int, seed: int = 0) -> Iterator[Task]:
        """Endless or long; distinct ids; the splits are disjoint whatever the seed."""
        ...

    def environment(self, task: Task, resources: Resources) -> Environment: ...

    def verifier(self, task: Task) -> tuple[str, Mapping[str, Any]]:
        """Name and settings of the verifier (`temper.verifiers`)."""
        ...

    def gold(self, task: Task) -> tuple[Message, ...]:
        """Assistant messages that solve the task, for demonstrations and for auditing its verifier."""
        ...


class Importer(Protocol):
    """Reads another format's tasks; `loss` lists what did not map."""

    def tasks(self, source: str) -> Iterator[Task]: ...

    def loss(self) -> list[str]: ...


class Sink(Protocol):
    """Where events and metrics go besides the store."""

    def event(self, event: Event) -> None: ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...
