"""The loop: limits become stop reasons, faults become data, nothing is left open, and long episodes cost linearly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import Struct

from temper.core.errors import CorruptError
from temper.core.protocols import Observation, Reply, Resources, SamplingParams
from temper.core.task import Limits, Message, SandboxSpec, Task, ToolCall
from temper.core.trace import Trace
from temper.engines.chat import EngineChat
from temper.engines.scripted import ScriptedChat, ScriptedEngine
from temper.models.chat import ChatFormat
from temper.rollouts.environments import ChatEnvironment, ToolEnvironment
from temper.rollouts.episode import run_episode, turn_seed
from temper.rollouts.toolsets import Toolset, tool


class Count(Struct):
    n: int = 0


class Counter(Toolset):
    State = Count

    @tool
    def up(self, by: int = 1) -> int:
        """Count."""
        self.state.n += by
        return self.state.n

    @tool
    async def cat(self, path: str) -> str:
        """Show a file."""
        return (await self.sandbox.exec(["cat", path], seconds=self.seconds)).text

    @tool
    def bug(self) -> None:
        """Fail."""
        raise KeyError("ours")

    @property
    def done(self) -> bool:
        return self.state.n >= 1000

    def artifacts(self) -> dict[str, bytes]:
        return {"count": str(self.state.n).encode()}


def say(content: str = "", *calls: ToolCall) -> Message:
    return Message("assistant", content, calls)


def up(by: int = 1) -> Message:
    return say("", ToolCall("up", {"by": by}))


def task(**changes: Any) -> Task:
    settings: dict[str, Any] = {"limits": Limits(tokens=10_000), "artifacts": ("count",), "reference": "the answer"}
    settings |= {"messages": (Message("user", "count"),), "tools": Counter().specs()}
    return Task(id="t", domain="counting", **{**settings, **changes})


@pytest.fixture
def play(chat_format: ChatFormat, resources: Resources):
    """Run an episode with scripted replies, or with a model of one's own."""

    def run(script: Any, task: Task, environment: Any = None, clock: Any = time.monotonic) -> tuple[Trace, dict]:
        model = script if hasattr(script, "reply") else ScriptedChat(script, chat_format)
        environment = environment or ToolEnvironment(task, Counter(), resources)
        episode = run_episode(task, environment, model, SamplingParams(), trace_id="e", seed=5, clock=clock)
        return asyncio.run(episode)

    return run


def test_an_episode_with_tools(play, chat_format: ChatFormat) -> None:
    trace, artifacts = play([up(2), up(3), say("five")], task())
    assert (trace.stop, trace.fault, trace.answer) == ("answer", None, "five")
    assert artifacts == {"count": b"5"}
    assert [s.author for s in trace.segments] == ["environment", "policy"] * 3
    assert [s.parent for s in trace.segments] == [-1, 0, 1, 2, 3, 4]
    assert [m.content for m in trace.messages() if m.role == "tool"] == ["2", "5"]
    ids = np.concatenate([s.ids for s in trace.path()])
    whole = chat_format.render(trace.messages()[:-1], task().tools)
    assert ids.tolist() == [*whole, *chat_format.write(say("five"), task().tools)]
    assert trace.cost.tokens_in + trace.cost.tokens_out == len(ids)
    assert [(e.what, e.why) for e in trace.events][-3:] == [("tools", ""), ("turn", "stop"), ("end", "answer")]


def test_the_reference_is_nowhere_in_the_trace(play) -> None:
    trace, _ = play([up(), say("1")], task())
    text = repr([msgspec.structs.asdict(trace), [s.messages for s in trace.segments]])
    assert "the answer" not in text


@pytest.mark.parametrize(
    ("script", "changes", "stop"),
    [
        ([say("hello")], {}, "answer"),
        ([up(1000)], {}, "done"),
        ([up(), up(), up()], {"limits": Limits(turns=2, tokens=10_000)}, "turns"),
        ([say("x" * 50)], {"limits": Limits(turn_tokens=20)}, "tokens"),
        ([up()] * 9, {"limits": Limits(tokens=40)}, "tokens"),
        ([say(">>> up(")] * 3, {"limits": Limits(turns=3)}, "malformed"),
        ([say(">>> up("), up(1), say("1")], {}, "answer"),
        ([up()] * 3, {"limits": Limits(seconds=0.0)}, "seconds"),
    ],
)
def test_stop_reasons(play, script: list[Message], changes: dict[str, Any], stop: str) -> None:
    trace, artifacts = play(script, task(**changes))
    assert (trace.stop, trace.fault) == (stop, None)
    assert trace.cost.tokens_out <= task(**changes).limits.tokens
    assert "count" in artifacts


def test_a_full_window_is_a_stop_reason(play, chat_format: ChatFormat) -> None:
    class Full:
        name = "full"

        async def reply(self, messages: Sequence[Message], tools: Any, params: Any, history: Any = ()) -> Reply:
            return Reply(say(), (), "context")

    assert play(Full(), task())[0].stop == "context"


def test_what_nobody_reads_any_more_is_noted(play) -> None:
    trace, _ = play([up(1000)], task())
    assert trace.messages()[-1] == up(1000)
    assert [e.data["last"] for e in trace.events if e.what == "tools"] == [["1000"]]


def test_a_lost_sandbox_is_a_fault_and_no_zero(play, folders, resources: Resources) -> None:
    folders.lost = True
    files = task(sandbox=SandboxSpec(files={"a": b"x"}))
    trace, artifacts = play([say("", ToolCall("cat", {"path": "a"}))], files)
    assert (trace.stop, trace.fault.what, trace.fault.ruling.masked) == ("fault", "backend-lost", True)
    assert artifacts == {}
    assert len(trace.segments) == 2
    assert [folder.closed for folder in folders.opened] == [True]


def test_a_tool_that_raises_is_the_tasks_fault(play) -> None:
    trace, _ = play([say("", ToolCall("bug"))], task())
    assert (trace.fault.what, trace.fault.where) == ("environment-broken", "domains.counting")
    assert "KeyError" in trace.fault.detail


def test_an_engine_that_raises_is_ours(play, chat_format: ChatFormat) -> None:
    def script(ids: np.ndarray, params: SamplingParams) -> list[int]:
        raise OSError("device lost")

    trace, _ = play(EngineChat(ScriptedEngine(script), chat_format), task())
    assert (trace.fault.what, trace.fault.detail) == ("engine-lost", "OSError: device lost")


def test_damaged_weights_end_the_run_and_not_an_attempt(play, chat_format: ChatFormat) -> None:
    def script(ids: np.ndarray, params: SamplingParams) -> list[int]:
        raise CorruptError("the weights of version 3 are damaged")

    with pytest.raises(CorruptError, match="version 3"):
        play(EngineChat(ScriptedEngine(script), chat_format), task())


def test_an_environment_that_does_not_close_loses_nothing(play) -> None:
    class Sticky(ChatEnvironment):
        async def close(self) -> None:
            raise OSError("busy")

    trace, _ = play([say("4")], task(), Sticky(task()))
    assert (trace.stop, trace.fault) == ("answer", None)
    assert [e.why for e in trace.events if e.what == "close-failed"] == ["OSError: busy"]


def test_cancellation_propagates_after_everything_is_closed(chat_format: ChatFormat, folders, resources) -> None:
    async def scenario() -> None:
        hang = ScriptedEngine(lambda ids, params: repeat(ids[0]))
        world = ToolEnvironment(task(sandbox=SandboxSpec()), Counter(), resources)
        model = EngineChat(hang, chat_format)
        params = SamplingParams(max_tokens=10**9)
        limits = task(sandbox=SandboxSpec(), limits=Limits(tokens=10**9, turn_tokens=10**9))
        episode = asyncio.create_task(
            run_episode(limits, world, model, params, trace_id="e", seed=0, clock=time.monotonic)
        )
        await asyncio.sleep(0.05)
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode

    asyncio.run(scenario())
    assert [folder.closed for folder in folders.opened] == [True]


def test_turns_are_sampled_with_seeds_of_their_own(play, chat_format: ChatFormat) -> None:
    seeds: list[int] = []

    def script(ids: np.ndarray, params: SamplingParams) -> list[int]:
        seeds.append(params.seed)
        return chat_format.write(up(), task().tools).tolist()

    play(EngineChat(ScriptedEngine(script), chat_format), task(limits=Limits(turns=3)))
    assert seeds == [turn_seed(5, n) for n in range(3)]
    assert len(set(seeds)) == 3


def test_costs_are_told_apart_by_stage(play, chat_format: ChatFormat) -> None:
    now = [0.0]

    class Slow(ChatEnvironment):
        async def start(self) -> Observation:
            now[0] += 2.0
            return await super().start()

        async def step(self, action: Message) -> Observation:
            now[0] += 5.0
            return await super().step(action)

    class Engine(ScriptedChat):
        async def reply(self, *args: Any) -> Reply:
            now[0] += 10.0
            reply = await super().reply(*args)
            return msgspec.structs.replace(reply, prefill_seconds=1.0, decode_seconds=3.0)

    trace, _ = play(Engine([say("4")], chat_format), task(), Slow(task()), clock=lambda: now[0])
    cost = trace.cost
    assert (cost.queue, cost.prefill, cost.decode, cost.tool) == (2.0 + 6.0, 1.0, 3.0, 5.0)


def test_a_rewritten_history_becomes_a_branch_of_the_trace(play, chat_format: ChatFormat) -> None:
    class Compacting(ScriptedChat):
        """Replaces all that was said by a summary, before the third turn."""

        async def reply(self, messages: Sequence[Message], tools: Any, params: Any, history: Any = ()) -> Reply:
            if len(history) == 4:
                messages = [Message("user", "so far: 2")]
            return await super().reply(messages, tools, params, history)

    trace, _ = play(Compacting([up(), up(), up(), say("3")], chat_format), task())
    assert [s.parent for s in trace.segments] == [-1, 0, 1, 2, -1, 4, 5, 6]
    assert trace.leaves == [3, 7]
    assert trace.messages()[0] == Message("user", "so far: 2")


def test_a_hundred_turns_render_each_message_once(play, chat_format: ChatFormat) -> None:
    rendered: list[int] = []

    class Watched:
        stop_ids, parse, write = chat_format.stop_ids, staticmethod(chat_format.parse), staticmethod(chat_format.write)

        def render(self, messages: Sequence[Message], *args: Any, **more: Any) -> np.ndarray:
            rendered.append(len(messages))
            return chat_format.render(messages, *args, **more)

    script = [*[up() for _ in range(100)], say("100")]
    limits = Limits(turns=101, tokens=100_000)
    trace, artifacts = play(ScriptedChat(script, Watched()), task(limits=limits))  # type: ignore[arg-type]
    assert rendered == [1] * 101
    assert (trace.stop, len(trace.segments), artifacts) == ("answer", 202, {"count": b"100"})
