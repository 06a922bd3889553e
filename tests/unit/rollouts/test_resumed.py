"""Conversations that a dead process left: gone on with in a fresh sandbox, or not at all."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from temper.core import registry
from temper.core.protocols import Resources, SamplingParams
from temper.core.task import Limits, Message, SandboxSpec, Task, ToolCall
from temper.engines.scripted import ScriptedChat
from temper.rollouts.environments import ToolEnvironment
from temper.rollouts.episode import run_episode
from temper.rollouts.resumed import Resumed, Said
from temper.rollouts.toolsets import Toolset, tool
from temper.store.log import Log

LINES = ["echo one > log", "echo two >> log; cat log", "wc -l < log", "cat log | tr a-z A-Z"]


class Killed(BaseException):
    """Stands for the death of the process: nothing catches it."""


class Shell(Toolset):
    @tool
    async def run(self, command: str) -> str:
        """Run a command."""
        return (await self.sandbox.exec(["sh", "-c", command], seconds=self.seconds)).text


def task() -> Task:
    return Task(
        id="t", domain="d", messages=(Message("user", "work"),), tools=Shell().specs(), sandbox=SandboxSpec(),
        limits=Limits(tokens=10_000, turns=9),
    )  # fmt: skip


def play(model_of, name: str = "e"):
    """One episode in a local sandbox of its own."""

    async def run():
        backend = registry.find("sandboxes", "local").create()
        try:
            environment = ToolEnvironment(task(), Shell(), Resources(backend, time.monotonic, random.Random(0)))
            return await run_episode(
                task(), environment, model_of(), SamplingParams(), trace_id=name, seed=5, clock=time.monotonic
            )
        finally:
            await backend.close()

    return asyncio.run(run())[0]


@pytest.fixture
def left(chat_format, tmp_path):
    """Plays until the model is asked for turn `turn`, where the process dies; gives what is on disk."""

    def until(turn: int, lines: list[str]) -> list:
        log = Log(tmp_path / f"{turn}.log", Said, writable=True)
        script = iter(lines[:turn])

        def line(messages):
            try:
                return Message("assistant", calls=(ToolCall("run", {"command": next(script)}),))
            except StopIteration:
                raise Killed from None

        with pytest.raises(Killed):
            play(lambda: Resumed(ScriptedChat(line, chat_format), "e", [], log.append))
        log.close()
        said = list(Log(tmp_path / f"{turn}.log", Said))
        assert [(s.trace, s.turn) for s in said] == [("e", n) for n in range(turn)]
        return [s.reply for s in said]

    return until


def texts(trace) -> list[str]:
    return [m.content for m in trace.messages() if m.role == "tool"]


def calls(lines: list[str]) -> list[Message]:
    return [
        *(Message("assistant", calls=(ToolCall("run", {"command": line}),)) for line in lines),
        Message("assistant", "done"),
    ]


@pytest.mark.parametrize("turn", [1, 3])
def test_it_goes_on_with_the_very_tokens_and_a_world_in_the_same_state(left, chat_format, turn):
    said = left(turn, LINES)
    whole = play(lambda: ScriptedChat(calls(LINES), chat_format))
    heard = []

    def later(messages):
        heard.append(len(messages))
        return calls(LINES)[turn + len(heard) - 1]

    parts = play(lambda: Resumed(ScriptedChat(later, chat_format), "e", said, lambda _: None))
    assert texts(parts) == texts(whole) == ["", "one\ntwo\n", "2\n", "ONE\nTWO\n"]
    assert len(heard) == len(LINES) + 1 - turn, "what was said is not sampled again"
    assert parts.segments[1].ids is said[0].segments[1].ids
    assert [s.ids.tolist() for s in parts.segments] == [s.ids.tolist() for s in whole.segments]
    assert [s.parent for s in parts.segments] == [s.parent for s in whole.segments]


def test_a_world_that_answers_otherwise_ends_it_as_nobodys_fault(left, chat_format):
    said = left(2, ["date +%s%N", "echo two"])
    trace = play(lambda: Resumed(ScriptedChat([], chat_format), "e", said, lambda _: None))
    assert trace.fault.what == "preempted"
    assert trace.fault.ruling.training == "retry"
    assert "before turn 1 the world did not answer as it had" in trace.fault.detail


def test_a_conversation_of_one_turn_leaves_nothing(chat_format):
    recorded = []
    play(lambda: Resumed(ScriptedChat([Message("assistant", "done")], chat_format), "e", [], recorded.append))
    assert recorded == []
