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

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.protocols import SandboxBackend
from temper.core.task import Task
from temper.core.trace import Trace
from temper.verifiers import exact
from temper.verifiers.grading import Grader, Judgement, delivered, fingerprint
from temper.verifiers.pool import Pool

_CHECK, _CALLS = "temper.verifiers.checks.tools", "temper.verifiers.checks.calls"


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


def create(config: Config | None, pool: Pool, sandboxes: SandboxBackend | None = None) -> Grader:
    settings = config or Config()

    async def judge(task: Task, trace: Trace, artifacts: Mapping[str, bytes], reference: Reference) -> Judgement:
        _validate(reference)
        schemas = {tool.name: tool.parameters for tool in task.tools}
        expected = {**msgspec.to_builtins(reference), "schemas": schemas}
        gold = [msgspec.json.encode(expected["state"]), msgspec.json.encode([_one(call) for call in reference.calls])]
        made = [delivered(artifacts, name) for name in ("state.json", "calls.json")]
        right, why, components = await pool.judge(
            f"{_CHECK}:check", (*made, expected), (*gold, expected), lambda found: found[0], settings.seconds
        )
        if reference.answer:
            said = exact.normal(trace.answer, exact.Config()) == exact.normal(reference.answer, exact.Config())
            components = {**components, "answer": float(said)}
            right, why = right and said, why or ("" if said else "the final answer is not the expected one")
        return Judgement(float(right), why, components)

    return Grader("tools", fingerprint(settings, __name__, exact.__name__, _CHECK, _CALLS), Reference, judge)


def _one(call: Call) -> dict[str, Any]:
    """A call that is right."""
    options = {name: values[-1] for name, values in (call.options or {}).items() if values[-1] != ""}
    return {"name": call.name, "arguments": call.arguments | options}


def _validate(reference: Reference) -> None:
    """Raises FaultError: an empty expectation would pass by doing nothing, a cyclic one never."""
    if not (reference.state or reference.calls or reference.answer):
        raise FaultError("reference-missing", "verifiers.tools", "expected a state, calls or an answer")
    n = len(reference.calls)
    if any(not 0 <= k < n for pair in reference.order for k in pair):
        raise FaultError("reference-missing", "verifiers.tools", f"'order' names calls outside 0..{n - 1}")
    graph: TopologicalSorter[int] = TopologicalSorter()
    for i, j in reference.order:
        graph.add(j, i)
    try:
        graph.prepare()
    except CycleError as error:
        raise FaultError("reference-missing", "verifiers.tools", f"'order' has a cycle: {error.args[1]}") from None
