"""The multi-turn loop of one episode: task x environment x chat model -> trace and artifacts.

Limits hold by turn, by sampled tokens and by wall clock; running into one is a stop reason, the policy's own doing.
What breaks through no doing of the policy becomes `Trace.fault`; nothing but cancellation leaves this loop, and the
environment is closed either way. A turn costs what is new in it: nothing of the history is rendered or copied again
here. The task's reference is not looked at. Grading and retries live elsewhere, and so does what becomes of an episode
that is forked (`rollouts.branching`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from temper.core.blame import Fault, FaultError, boundary
from temper.core.protocols import ChatModel, Environment, Observation, Reply, SamplingParams
from temper.core.task import Message, Task
from temper.core.trace import Cost, Event, Segment, Stop, Trace

QUEUE_SECONDS = 600.0  # that a turn may wait for the engine, or an environment for its sandbox
CLOSE_SECONDS = 30.0

T = TypeVar("T")


async def run_episode(
    task: Task,
    environment: Environment,
    model: ChatModel,
    params: SamplingParams,
    *,
    trace_id: str,
    seed: int,
    clock: Callable[[], float],
) -> tuple[Trace, dict[str, bytes]]:
    """The trace, and the declared artifacts (none after a fault). `seed` decides the sampling seed of every turn."""
    episode = Episode(task, environment, model, replace(params, seed=seed), trace_id, clock)
    await episode.play()
    return episode.trace(), episode.artifacts


def turn_seed(seed: int, turn: int) -> int:
    """The sampling seed of a turn: 63 bits, the same on every machine, unrelated between turns."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{turn}".encode(), digest_size=8).digest()) >> 1


@dataclass
class Episode:
    """What grows while the loop runs. `path` holds the indices of the current branch, `history` its segments.

    `before`: what was spent on the way here by the episode that this one was forked from.
    """

    task: Task
    environment: Environment
    model: ChatModel
    params: SamplingParams
    id: str
    clock: Callable[[], float]
    messages: list[Message] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    history: list[Segment] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    before: Cost = field(default_factory=Cost)
    turn: int = 0
    stop: Stop = "fault"
    fault: Fault | None = None
    artifacts: dict[str, bytes] = field(default_factory=dict)

    async def play(self, until: int = -1) -> bool:
        """To the end, where the environment is closed; True where turn `until` comes next, and all is still open."""
        open_still = False
        try:
            ended = await self._turns(until)
            if ended is None:
                open_still = True
            else:
                self.artifacts = await self.world(self.environment.artifacts(), "artifacts")
                self.stop = ended
        except FaultError as error:
            self.fault = error.fault
        finally:
            if not open_still:  # shielded, so that a second cancellation does not leave a sandbox behind
                await asyncio.shield(asyncio.ensure_future(self.close()))
        return open_still

    def trace(self) -> Trace:
        return Trace(
            id=self.id,
            task=self.task.id,
            domain=self.task.domain,
            seed=self.params.seed,
            segments=tuple(self.segments),
            stop=self.stop,
            events=tuple(self.events),
            cost=self.cost,
            fault=self.fault,
        )

    async def _turns(self, until: int) -> Stop | None:
        """How it ended; None where turn `until` comes next."""
        limits = self.task.limits
        if not self.turn:
            observation = await self.world(self.environment.start(), "start")
            self.messages += observation.messages
        last = Message("assistant")
        while self.turn < limits.turns:
            if self.turn == until:
                return None
            reply = await self._reply(self.turn)
            self.turn += 1
            if reply.stop in ("length", "context"):
                return "tokens" if reply.stop == "length" else "context"
            last = reply.message
            observation = await self._step(last)
            if observation.done:
                return "malformed" if last.malformed else "done" if last.calls else "answer"
            if self._elapsed() > limits.seconds:
                return "seconds"
            if self._sampled() >= limits.tokens:
                return "tokens"
        return "malformed" if last.malformed else "turns"

    async def world(self, call: Awaitable[T], what: str) -> T:
        """Await the environment. What it raises is the task's fault, unless it says otherwise."""
        limit = self.task.limits.seconds + QUEUE_SECONDS
        started = self.clock()
        with boundary("environment-broken", f"domains.{self.task.domain}"):
            result = await _within(limit, call, f"{what} of task {self.task.id}")
        seconds = self.clock() - started
        self.cost += Cost(queue=seconds) if what == "start" else Cost(tool=seconds)
        return result

    async def close(self) -> None:
        """What breaks here is noted and no fault: the episode is over, and its trace is good."""
        try:
            await _within(CLOSE_SECONDS, self.environment.close(), "close of the environment")
        except Exception as error:  # a boundary: whatever a domain or a backend raises must not lose the trace
            self.note("close-failed", f"{type(error).__name__}: {error}"[:2000])
        self.note("end", self.stop)

    def note(self, what: str, why: str = "", **data: object) -> None:
        self.events.append(Event(when=self.clock(), what=what, whom=self.id, why=why, data=data))

    async def _step(self, action: Message) -> Observation:
        observation = await self.world(self.environment.step(action), "step")
        self.messages += observation.messages
        if observation.messages:
            errors = sum(message.content.startswith("error:") for message in observation.messages)
            calls = [call.name for call in action.calls]
            data = {"calls": calls, "errors": errors}
            if observation.done:  # nobody reads it any more, so that no segment holds it
                data["last"] = [message.content for message in observation.messages]
            self.note("tools", action.malformed, **data)
        return observation

    async def _reply(self, turn: int) -> Reply:
        limits = self.task.limits
        room = min(self.params.max_tokens, limits.turn_tokens, limits.tokens - self._sampled())
        params = replace(self.params, max_tokens=room, seed=turn_seed(self.params.seed, turn))
        call = self.model.reply(self.messages, self.task.tools, params, self.history)
        started = self.clock()
        with boundary("engine-lost", f"engines.{self.model.name}"):
            reply = await _within(limits.seconds + QUEUE_SECONDS, call, f"turn {turn} of {self.id} at the engine")
        waited = self.clock() - started
        if reply.stop == "aborted":
            raise FaultError("preempted", f"engines.{self.model.name}", f"turn {turn} of {self.id} was aborted")
        self._keep(reply)
        sampled = sum(len(segment) for segment in reply.segments if segment.author == "policy")
        given = sum(len(segment) for segment in reply.segments) - sampled
        self.cost += Cost(
            queue=max(0.0, waited - reply.prefill_seconds - reply.decode_seconds),
            prefill=reply.prefill_seconds,
            decode=reply.decode_seconds,
            tokens_in=given,
            tokens_out=sampled,
        )
        self.note("turn", reply.stop, turn=turn, given=given, sampled=sampled)
        return reply

    def _keep(self, reply: Reply) -> None:
        """Add a reply's segments. Their parents count along the branch; in the trace they count all segments."""
        rewritten = bool(self.history and reply.segments and reply.segments[0].parent < 0)
        if rewritten:
            self.path, self.history = [], []
        for segment in reply.segments:
            parent = self.path[-1] if self.path else -1
            self.path.append(len(self.segments))
            self.segments.append(segment if segment.parent == parent else replace(segment, parent=parent))
            self.history.append(self.segments[-1])
        if rewritten:  # the new branch is what the next turn goes on from
            self.messages = [message for segment in self.history for message in segment.messages]
        else:
            self.messages.append(reply.message)

    def _sampled(self) -> int:
        return self.before.tokens_out + self.cost.tokens_out

    def _elapsed(self) -> float:
        """What the policy answers for: not the queue, nor prefill, in whose time an engine's queue may hide."""
        spent = self.before + self.cost
        return spent.tool + spent.decode


async def _within(seconds: float, call: Awaitable[T], what: str) -> T:
    try:
        async with asyncio.timeout(seconds) as limit:
            return await call
    except TimeoutError:
        if not limit.expired():
            raise
        raise FaultError("wait-limit", "rollouts", f"{what} did not come back within {seconds:g} s") from None
