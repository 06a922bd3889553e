"""Environments that most tasks need: a single answer, and tools over an optional sandbox.

An environment is single-use: `start`, then `step` with each assistant message, `artifacts`, `close`. Limits of turns,
tokens and wall clock are the episode's business (`rollouts.episode`); the limit of one tool call is kept here.
Simulated users and branching over many environments live elsewhere.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.errors import RefusedError
from temper.core.protocols import Observation, Resources, Sandbox, Snapshots
from temper.core.task import Message, Task, ToolCall
from temper.rollouts.toolsets import Toolset

MAX_CALLS = 8  # of one assistant message; those beyond are answered with an error
GRACE_SECONDS = 30.0  # past a call's limit, for the sandbox to end its command or to report itself lost


class ChatEnvironment:
    """One question, one answer, no tools."""

    def __init__(self, task: Task) -> None:
        self.task = task

    async def start(self) -> Observation:
        return Observation(self.task.messages)

    async def step(self, action: Message) -> Observation:
        return Observation(done=True)

    async def artifacts(self) -> dict[str, bytes]:
        return {}

    async def save(self) -> bytes:
        return b""

    async def restore(self, saved: bytes) -> None:
        pass

    async def fork(self, n: int) -> list[ChatEnvironment]:
        return [copy.copy(self) for _ in range(n)]

    async def close(self) -> None:
        pass


class Saved(Struct, frozen=True):
    """What `ToolEnvironment.save` writes: the toolset's state as msgpack, and a snapshot's id ("" without sandbox)."""

    state: msgspec.Raw
    snapshot: str = ""


class ToolEnvironment:
    """Tools over the toolset's state and, where the task asks for one, a sandbox that is opened at the start.

    An assistant message without calls ends the episode, as does `toolset.done`. A malformed one is answered with the
    reason, so that the model may try again. A call past its limit is the policy's doing and answered with an error;
    a sandbox that does not come back in time either is FaultError("wait-limit").
    """

    def __init__(self, task: Task, toolset: Toolset, resources: Resources) -> None:
        self.task = task
        self.toolset = toolset
        self.resources = resources
        self.sandbox: Sandbox | None = None
        toolset.limit = task.limits.tool_seconds

    async def start(self) -> Observation:
        if self.task.sandbox is not None:
            self._bind(await self.resources.sandboxes.open(self.task.sandbox))
        return Observation(self.task.messages)

    async def step(self, action: Message) -> Observation:
        if action.malformed:
            return Observation((Message("tool", f"error: {action.malformed}"),))
        if not action.calls:
            return Observation(done=True)
        results = []
        for n, call in enumerate(action.calls):
            text = await self._call(call) if n < MAX_CALLS else f"error: at most {MAX_CALLS} calls in one message"
            results.append(Message("tool", text, name=call.name))
            if self.toolset.done:
                break
        return Observation(tuple(results), done=self.toolset.done)

    async def artifacts(self) -> dict[str, bytes]:
        found = {name: content for name, content in self.toolset.artifacts().items() if name in self.task.artifacts}
        for name in self.task.artifacts:
            if name not in found and self.sandbox is not None:
                try:
                    found[name] = await self.sandbox.get(name)
                except FileNotFoundError:
                    continue
        return found

    async def save(self) -> bytes:
        snapshot = await self._snapshots().snapshot() if self.sandbox is not None else ""
        state = msgspec.Raw(msgspec.msgpack.encode(self.toolset.state))
        return msgspec.msgpack.encode(Saved(state, snapshot))

    async def restore(self, saved: bytes) -> None:
        record = msgspec.msgpack.decode(saved, type=Saved)
        self.toolset.state = msgspec.msgpack.decode(record.state, type=type(self.toolset.state))
        if record.snapshot:
            await self._snapshots().rollback(record.snapshot)

    async def fork(self, n: int) -> list[ToolEnvironment]:
        saved = msgspec.msgpack.decode(await self.save(), type=Saved)
        boxes: list[Any] = [None] * n
        if self.sandbox is not None:
            boxes = await self._snapshots().fork(saved.snapshot, n)
        forks = []
        for box in boxes:
            toolset = copy.copy(self.toolset)
            toolset.state = msgspec.msgpack.decode(saved.state, type=type(self.toolset.state))
            fork = ToolEnvironment(self.task, toolset, self.resources)
            if box is not None:
                fork._bind(box)
            forks.append(fork)
        return forks

    async def close(self) -> None:
        sandbox, self.sandbox = self.sandbox, None
        if sandbox is not None:
            await sandbox.close()

    def _bind(self, sandbox: Sandbox) -> None:
        self.sandbox = self.toolset.sandbox = sandbox

    async def _call(self, call: ToolCall) -> str:
        limit = self.toolset.limit
        try:
            # A sandbox ends its command at `limit` by itself and says so; only what hangs gets to the grace.
            async with asyncio.timeout(limit if self.sandbox is None else limit + GRACE_SECONDS):
                return await self.toolset.call(call)
        except TimeoutError:
            if self.sandbox is None:
                return f"error: {call.name} was ended at its limit of {limit:g} s"
            waited = f"{call.name} in sandbox {self.sandbox.id} did not return within {limit + GRACE_SECONDS:g} s"
            raise FaultError("wait-limit", "sandboxes", waited) from None

    def _snapshots(self) -> Snapshots:
        if not isinstance(self.sandbox, Snapshots):
            raise RefusedError(
                f"task {self.task.id}: save and fork need a sandbox with snapshots, which this backend's has not; "
                "choose a backend that `temper list sandboxes` shows with snapshots"
            )
        return self.sandbox
