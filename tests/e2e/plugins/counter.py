"""A domain of a hundred turns: count to a hundred, one call a turn, then answer."""

import itertools

from msgspec import Struct

from temper.core.task import Limits, Message, Provenance, Task, ToolCall
from temper.rollouts.environments import ToolEnvironment
from temper.rollouts.toolsets import Toolset, tool

TURNS = 100


class Counting(Struct):
    count: int = 0


class Counter(Toolset):
    State = Counting

    @tool
    async def up(self, n: int) -> str:
        """Say the next number."""
        self.state.count += n == self.state.count + 1
        return str(self.state.count)

    def artifacts(self):
        return {"state.json": b'{"count": %d}' % self.state.count, "calls.json": b"[]"}


def create(config):
    return Counters()


class Counters:
    name = "plugins.counter"
    levels = (1,)

    def tasks(self, split, level, seed=0):
        for n in itertools.count():
            yield Task(
                id=f"counter-{split}-{n}",
                domain=self.name,
                messages=(Message("user", f"{n}: count"),),
                tools=Counter().specs(),
                limits=Limits(turns=TURNS + 1, turn_tokens=12, tokens=4000),
                artifacts=("state.json", "calls.json"),
                reference={"state": {"count": TURNS}},
                split=split,
                provenance=Provenance(source="test"),
            )

    def environment(self, task, resources):
        return ToolEnvironment(task, Counter(), resources)

    def verifier(self, task):
        return "tools", {}

    def gold(self, task):
        calls = [Message("assistant", calls=(ToolCall("up", {"n": n}),)) for n in range(1, TURNS + 1)]
        return (*calls, Message("assistant", "done"))
