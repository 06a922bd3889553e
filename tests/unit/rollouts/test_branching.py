"""Episodes that are forked at a turn: one trunk, worlds that part, and credit read off the siblings."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import numpy as np
import pytest

from temper.core import registry
from temper.core.protocols import Resources, SamplingParams
from temper.core.task import Limits, Message, SandboxSpec, Task, ToolCall
from temper.core.trace import Group, Sample, Verdict
from temper.engines.scripted import ScriptedChat
from temper.rollouts.branching import run_branches
from temper.rollouts.environments import ToolEnvironment
from temper.rollouts.episode import Episode
from temper.rollouts.toolsets import Toolset, tool
from temper.training.algorithms import branches as algorithm
from temper.training.stages import path


class Shell(Toolset):
    @tool
    async def run(self, command: str) -> str:
        """Run a command."""
        return (await self.sandbox.exec(["sh", "-c", command], seconds=self.seconds)).text


def task(**limits) -> Task:
    return Task(
        id="t", domain="d", messages=(Message("user", "work"),), tools=Shell().specs(), sandbox=SandboxSpec(),
        limits=Limits(**({"tokens": 10_000, "turns": 5} | limits)),
    )  # fmt: skip


def call(command: str) -> Message:
    return Message("assistant", calls=(ToolCall("run", {"command": command}),))


@pytest.fixture
def play(chat_format):
    """Every conversation says the next of `trunk` until the fork, then writes its own number into the shared file."""

    def run(trunk: list[Message], turn: int, children: int, **limits):
        asked = Counter()

        def line(messages):
            turns = sum(m.role == "assistant" for m in messages)
            if turns < len(trunk):
                asked["trunk"] += 1
                return trunk[turns]
            if turns == len(trunk):
                asked["children"] += 1
                return call(f"echo {asked['children']} >> log; cat log")
            return Message("assistant", "done")

        async def go():
            backend = registry.find("sandboxes", "local").create()
            try:
                resources = Resources(backend, time.monotonic, random.Random(0))
                environment = ToolEnvironment(task(**limits), Shell(), resources)
                model = ScriptedChat(line, chat_format)
                trunk = Episode(task(**limits), environment, model, SamplingParams(seed=3), "e", time.monotonic)
                return await run_branches(trunk, turn, children)
            finally:
                await backend.close()

        return *asyncio.run(go()), asked

    return run


def test_children_share_the_trunk_and_part_with_their_worlds(play):
    tree, branches, asked = play([call("echo 0 > log")], turn=1, children=3)
    assert asked == {"trunk": 1, "children": 3}
    assert len(tree.leaves) == len(branches) == 3
    assert {b.places[-1] for b in branches} == set(tree.leaves)
    heard = {tree.messages(leaf)[-2].content for leaf in tree.leaves}
    assert heard == {"0\n1\n", "0\n2\n", "0\n3\n"}
    for branch in branches:
        assert [tree.segments[i] for i in branch.places[:2]] == list(branch.trace.segments[:2])
        of_tree = [s.ids.tolist() for s in tree.path(branch.places[-1])]
        assert of_tree == [s.ids.tolist() for s in branch.trace.path()]
        assert (branch.trace.stop, branch.trace.fault) == ("answer", None)
    assert tree.cost.tokens_out == sum(len(s) for s in tree.segments if s.author == "policy")
    assert len({b.trace.seed for b in branches}) == 3


def test_a_turn_is_worth_what_its_siblings_earned(play):
    tree, branches, _ = play([call("echo 0 > log")], turn=1, children=2)
    verdicts = [
        branch.placed(Verdict.ruled("graded", "e", "v", score=score, rewards={len(branch.places) - 1: score}))
        for branch, score in zip(branches, [1.0, 0.0], strict=True)
    ]
    samples = tuple(Sample(tree, v, v.leaf) for v in verdicts)
    assert [s.verdict.reward for s in samples] == [1.0, 0.0]
    (credits,) = algorithm.advantages([Group("t", "d", samples)])
    for sample, credit, sign in zip(samples, credits, [0.5, -0.5], strict=True):
        trunk = sum(len(s) for s in tree.segments[:2])
        trained = path(tree, sample.leaf).trainable
        assert np.allclose(credit[:trunk], 0), "the trunk is worth the mean of what came of it"
        assert np.allclose(credit[trunk:][trained[trunk:]], sign)


def test_a_conversation_that_ends_before_the_fork_has_one_leaf(play):
    tree, branches, asked = play([Message("assistant", "done at once")], turn=1, children=4)
    assert len(tree.leaves) == len(branches) == 1
    assert asked == {"trunk": 1}
    assert tree.stop == "answer"


def test_limits_count_what_was_spent_before_the_fork(play):
    tree, branches, _ = play([call("echo 0 > log")], turn=1, children=2, turns=2)
    assert {b.trace.stop for b in branches} == {"turns"}
    tokens = len(tree.segments[1]) + 1
    _, branches, _ = play([call("echo 0 > log")], turn=1, children=2, tokens=tokens)
    assert {b.trace.stop for b in branches} == {"tokens"}
