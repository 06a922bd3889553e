"""A tool-using episode is right when its end state is the expected one, collateral changes included (`checks.tools`).

Reference: {"state": {...}, "calls": [{"name", "arguments"}], "order": [[i, j], ...], "answer": "...", "only": false};
all but the state may be left out. `calls` are required ones; others may be made beside them unless `only` is true.
A call with {"name", "options": {parameter: [values]}} allows alternatives, by the schemas of `task.tools`
(`checks.calls`). `order` says that call i comes before call j, `answer` is compared as `exact` does. The environment
delivers `state.json` and `calls.json`: the executed calls in order, each {"name", "arguments"} and, where it failed,
"ok": false, which then does not count as made.

Doing nothing fails whenever the expected state is not the first one, or a call or an answer is required. Components:
state, arguments, order, answer.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.task import Task
from temper.verifiers import exact
from temper.verifiers.grading import Given, Judgement, Plugin


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 2.0


class Call(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] = {}
    options: dict[str, list[Any]] | None = None


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    state: dict[str, Any]
    calls: list[Call] = []
    order: list[tuple[int, int]] = []
    answer: str = ""
    only: bool = False


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    schemas = {tool.name: tool.parameters for tool in given.task.tools}
    expected = {**msgspec.to_builtins(reference), "schemas": schemas}
    gold = [msgspec.json.encode(expected["state"]), msgspec.json.encode([_one(call) for call in reference.calls])]
    made = [given.file(name) for name in ("state.json", "calls.json")]
    right, why, components = await given.pool.judge(
        "temper.verifiers.checks.tools:check",
        (*made, expected), (*gold, expected), lambda found: found[0], settings.seconds,
    )  # fmt: skip
    if reference.answer:
        said, wanted = (exact.normal(text, exact.Config()) for text in (given.trace.answer, reference.answer))
        components = {**components, "answer": float(said == wanted)}
        right, why = right and said == wanted, why or "the final answer is not the expected one" * (said != wanted)
    return Judgement(float(right), why, components)


def _one(call: Call) -> dict[str, Any]:
    """A call that is right."""
    options = {name: values[-1] for name, values in (call.options or {}).items() if values[-1] != ""}
    return {"name": call.name, "arguments": call.arguments | options}


def _problem(reference: Reference, task: Task) -> str:
    """An empty expectation would pass by doing nothing, a cyclic one never."""
    if not (reference.state or reference.calls or reference.answer):
        return "expected a state, calls or an answer"
    if any(not 0 <= k < len(reference.calls) for pair in reference.order for k in pair):
        return f"'order' names calls outside 0..{len(reference.calls) - 1}"
    graph: TopologicalSorter[int] = TopologicalSorter()
    for i, j in reference.order:
        graph.add(j, i)
    try:
        graph.prepare()
    except CycleError as error:
        return f"'order' has a cycle: {error.args[1]}"
    return ""


create = Plugin(__name__, Config, Reference, judge, _problem)
