"""Environments: what the world answers, whose doing it is, and what leaves it."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.protocols import Resources
from temper.core.task import Limits, Message, SandboxSpec, Task, ToolCall
from temper.rollouts import environments
from temper.rollouts.environments import ChatEnvironment, ToolEnvironment
from temper.rollouts.toolsets import Toolset, tool


class Count(Struct):
    n: int = 0


class Shell(Toolset):
    State = Count

    @tool
    async def run(self, command: str) -> str:
        """Run a command."""
        self.state.n += 1
        done = await self.sandbox.exec(["sh", "-c", command], seconds=self.seconds)
        return "error: deadline" if done.cause == "deadline" else done.text

    @tool
    async def sleep(self, seconds: float) -> None:
        """Sleep, whatever the limit is."""
        await asyncio.sleep(seconds)

    @tool
    def submit(self) -> str:
        """Submit."""
        self.state.n = 100
        return "thanks"

    @property
    def done(self) -> bool:
        return self.state.n >= 100

    def artifacts(self) -> dict[str, bytes]:
        return {"count": str(self.state.n).encode(), "secret": b"not declared"}


def task(**changes) -> Task:
    settings = {
        "sandbox": SandboxSpec(files={"a.txt": b"hello"}),
        "artifacts": ("a.txt", "count", "never.txt"),
        "limits": Limits(tool_seconds=0.2),
    }
    return Task(id="t", domain="d", messages=(Message("user", "go"),), **{**settings, **changes})


def act(name: str, **arguments) -> Message:
    return Message("assistant", calls=(ToolCall(name, arguments),))


def test_a_chat_ends_with_its_answer() -> None:
    async def scenario() -> None:
        chat = ChatEnvironment(task())
        assert (await chat.start()).messages == (Message("user", "go"),)
        assert (await chat.step(Message("assistant", "4"))).done
        assert await chat.artifacts() == {}

    asyncio.run(scenario())


def test_tools_work_in_the_tasks_sandbox_until_an_answer_without_calls(resources: Resources, folders) -> None:
    async def scenario() -> None:
        world = ToolEnvironment(task(), Shell(), resources)
        assert (await world.start()).messages == (Message("user", "go"),)
        seen = await world.step(act("run", command="cat a.txt; echo more > a.txt"))
        assert (seen.messages, seen.done) == ((Message("tool", "hello", name="run"),), False)
        assert (await world.step(Message("assistant", "done"))).done
        assert await world.artifacts() == {"a.txt": b"more\n", "count": b"1"}
        await world.close()
        await world.close()

    asyncio.run(scenario())
    assert [folder.closed for folder in folders.opened] == [True]


def test_a_toolset_ends_the_episode_and_later_calls_do_not_run(resources: Resources) -> None:
    async def scenario() -> None:
        world = ToolEnvironment(task(sandbox=None), Shell(), resources)
        await world.start()
        seen = await world.step(Message("assistant", calls=(ToolCall("submit"), ToolCall("run", {"command": "x"}))))
        assert (seen.messages, seen.done) == ((Message("tool", "thanks", name="submit"),), True)

    asyncio.run(scenario())


def test_a_malformed_message_is_answered_with_the_reason(resources: Resources) -> None:
    async def scenario() -> None:
        world = ToolEnvironment(task(), Shell(), resources)
        seen = await world.step(Message("assistant", ">>> run(", malformed="never closed"))
        assert (seen.messages, seen.done) == ((Message("tool", "error: never closed"),), False)

    asyncio.run(scenario())


def test_calls_beyond_the_cap_are_answered_and_do_not_run(resources: Resources) -> None:
    async def scenario() -> None:
        world = ToolEnvironment(task(sandbox=None), Shell(), resources)
        calls = tuple(ToolCall("sleep", {"seconds": 0}) for _ in range(environments.MAX_CALLS + 1))
        seen = await world.step(Message("assistant", calls=calls))
        assert [m.content for m in seen.messages][-2:] == ["ok", "error: at most 8 calls in one message"]

    asyncio.run(scenario())


def test_a_commands_deadline_is_the_policys_and_the_episode_goes_on(resources: Resources) -> None:
    async def scenario() -> None:
        world = ToolEnvironment(task(), Shell(), resources)
        await world.start()
        assert (await world.step(act("run", command="exec sleep 9"))).messages[0].content == "error: deadline"

    asyncio.run(scenario())


def test_commands_of_one_call_share_its_limit(resources: Resources) -> None:
    class Twice(Shell):
        @tool
        async def twice(self) -> str:
            """Run two commands."""
            ends = [await self.sandbox.exec(["sleep", "0.15"], seconds=self.seconds) for _ in range(2)]
            return " ".join(end.cause for end in ends)

    async def scenario() -> None:
        world = ToolEnvironment(task(), Twice(), resources)
        await world.start()
        assert (await world.step(act("twice"))).messages[0].content == "exited deadline"

    asyncio.run(scenario())


def test_a_tool_without_sandbox_is_ended_at_its_limit(resources: Resources) -> None:
    async def scenario() -> None:
        world = ToolEnvironment(task(sandbox=None), Shell(), resources)
        await world.start()
        seen = await world.step(act("sleep", seconds=9))
        assert seen.messages[0].content == "error: sleep was ended at its limit of 0.2 s"

    asyncio.run(scenario())


def test_a_sandbox_that_hangs_is_ours(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "GRACE_SECONDS", 0.1)

    async def scenario() -> None:
        world = ToolEnvironment(task(), Shell(), resources)
        await world.start()
        with pytest.raises(FaultError, match="sleep in sandbox 0 did not return within") as caught:
            await world.step(act("sleep", seconds=9))
        assert caught.value.fault.ruling.blame == "infrastructure"

    asyncio.run(scenario())


def test_a_saved_world_is_gone_back_to(resources: Resources) -> None:
    async def scenario() -> None:
        world = ToolEnvironment(task(), Shell(), resources)
        await world.start()
        saved = await world.save()
        await world.step(act("run", command="echo changed > a.txt"))
        await world.restore(saved)
        assert await world.artifacts() == {"a.txt": b"hello", "count": b"0"}

    asyncio.run(scenario())


def test_forks_do_not_see_each_other(resources: Resources, folders) -> None:
    async def scenario() -> None:
        world = ToolEnvironment(task(), Shell(), resources)
        await world.start()
        await world.step(act("run", command="echo base > a.txt"))
        left, right = await world.fork(2)
        await left.step(act("run", command="echo left > a.txt"))
        assert await left.artifacts() == {"a.txt": b"left\n", "count": b"2"}
        assert await right.artifacts() == {"a.txt": b"base\n", "count": b"1"}
        assert await world.artifacts() == {"a.txt": b"base\n", "count": b"1"}
        for each in (world, left, right):
            await each.close()

    asyncio.run(scenario())
    assert sum(folder.closed for folder in folders.opened) == 3
