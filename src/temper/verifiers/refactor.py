"""A refactoring: behaves as before, keeps its public interface, and moves the metric that was asked for.

Reference: {"module": "m.py", "inputs": {"f": [input, ...]}, "goals": [{"metric", "most", "of"}], "renamed": {old: new},
"adds": [names], "solution": {path: text}}. The old code is `task.sandbox.files`, the new one the delivered artifacts.

- Behaviour: each function of `inputs` is called with drawn arguments, old and new in boxes of their own, and has to
  give equal values by type and leave equal arguments, or raise an error of the same type. Inputs are drawn by `drawn`:
  edges first, then at random, from a seed that the task's id decides.
- Interface: public functions, methods, parameters and defaults of the delivered modules stay, but for `renamed`, and
  `adds`, which have to be there (`checks.metrics`). Private names are free.
- Goals: every metric is at most `most`; the old code reaches at least one of them not, so that doing nothing fails.

Components: behaviour (share of calls that agree), interface, goals.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.task import Task
from temper.verifiers import boxes, code
from temper.verifiers.checks.values import faithful
from temper.verifiers.grading import Given, Judgement, Plugin


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    calls: int = 120  # of each function
    seconds: float = 10.0  # of all calls together
    interpreter: boxes.Interpreter = boxes.Interpreter()


class Goal(Struct, frozen=True, forbid_unknown_fields=True):
    """`of` is the name or the literal whose uses are counted, or "" for metrics of the whole."""

    metric: str
    most: float
    of: str = ""


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    module: str
    inputs: dict[str, list[Any]]
    goals: list[Goal]
    renamed: dict[str, str] = {}
    adds: list[str] = []
    solution: dict[str, str] = {}


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    files = given.files()
    components, whys = await _read(given, files, reference)
    components["behaviour"], why = await _behaviour(given, files, reference, settings)
    return Judgement.of([why, *whys] if why else whys, components)


async def _read(given: Given, files: Mapping[str, bytes], reference: Reference) -> tuple[dict[str, float], list[str]]:
    """Interface and goals, without running anything. Raises FaultError when the old code reaches the goals."""
    before = given.task.sandbox.files if given.task.sandbox else {}
    new = {path: text.decode("utf-8", "replace") for path, text in files.items()}
    old = {path: before.get(path, b"").decode("utf-8", "replace") for path in files}
    asked = (old, reference.renamed, reference.adds, msgspec.to_builtins(reference.goals))
    gold = {**old, **reference.solution}
    components, whys = await given.pool.judge(
        "temper.verifiers.checks.metrics:check", (new, *asked), (gold, *asked), bool, 5.0
    )
    if components.pop("old", 0):
        raise FaultError("gold-fails", "verifiers.refactor", "the old code reaches all goals")
    return components, whys


async def _behaviour(
    given: Given, files: Mapping[str, bytes], reference: Reference, settings: Config
) -> tuple[float, str]:
    """The share of calls on which old and new agree, and one on which they do not."""
    running = code.Config(seconds=settings.seconds, interpreter=settings.interpreter)
    rng, n = random.Random(given.task.id), settings.calls
    calls = [(name, args) for name, inputs in reference.inputs.items() for args in argument_lists(rng, inputs, n)]
    sides = []
    for layer, names in (({}, {}), (files, reference.renamed)):
        cases = [code.Case(function=names.get(name, name), args=args, watch=True) for name, args in calls]
        spec = boxes.with_files(given.task.sandbox, layer)
        sides.append(code.outcomes_of(given.sandboxes, spec, reference.module, cases, running))
    before, after = ([_told(outcome) for outcome in outcomes] for outcomes in await asyncio.gather(*sides))
    if not all(told and faithful(told[1]) for told in before) or not any(told[0] == "value" for told in before):
        raise FaultError("gold-fails", "verifiers.refactor", "the old code ends early, or gives no plain value")
    differ = [at for at in range(len(calls)) if before[at] != after[at]]
    if not differ:
        return 1.0, ""
    name, args = calls[differ[0]]
    call = f"{name}({', '.join(map(repr, args))})"[:200]
    return 1 - len(differ) / len(calls), f"{call} does not give what it gave before"


def _told(outcome: Any) -> Any:
    """What counts of an outcome: the value, or the type of the error; None when there is neither."""
    match outcome:
        case ["value", [str(), *_] as form]:
            return "value", form
        case ["raised", [str() as name, *_], str()]:
            return "raised", name
    return None


def argument_lists(rng: random.Random, inputs: list[Any], n: int) -> list[list[Any]]:
    """n argument lists: the edges of each parameter in turn, then random ones.

    Where there is one parameter, every number of a small range is among them, alone or alone in its list.
    """
    lists = [[drawn(rng, kind, edge) for kind in inputs] for edge in range(4)]
    lists += [[drawn(rng, kind) for kind in inputs] for _ in range(n - len(lists))]
    match inputs:
        case [{"int": [low, high]}] if high - low < n:
            return [[number] for number in range(low, high + 1)]
        case [{"list": {"int": [low, high]}}] if high - low < n:
            return [[[number]] for number in range(low, high + 1)] + lists
    return lists


def drawn(rng: random.Random, kind: Any, edge: int | None = None) -> Any:
    """A value of {"int": [low, high]}, {"float": [low, high]}, {"word": letters, "most": n}, {"one of": [values]},
    {"list": kind, "most": n}, {"tuple": [kinds]} or {"dict": [key kind, value kind], "most": n}. Edges: low, high, ...
    """
    (name, content), *more = kind.items()
    most = more[0][1] if more else 6
    size = rng.randint(0, most) if edge is None else (0, 1, most, 2)[edge]
    match name:
        case "int":
            low, high = content
            edges = (low, high, min(max(0, low), high), min(low + 1, high))
            return rng.randint(low, high) if edge is None else edges[edge]
        case "float":
            return round(rng.uniform(*content), 2)
        case "word":
            return "".join(rng.choice(content) for _ in range(size))
        case "one of":
            return rng.choice(content) if edge is None else content[edge % len(content)]
        case "list":
            return [drawn(rng, content) for _ in range(size)]
        case "tuple":
            return tuple(drawn(rng, each, edge) for each in content)
        case "dict":
            return {drawn(rng, content[0]): drawn(rng, content[1]) for _ in range(size)}
    raise FaultError("reference-missing", "verifiers.refactor", f"no input is called {name!r}")


def _problem(reference: Reference, task: Task) -> str:
    sound = reference.inputs and reference.goals and task.sandbox and task.artifacts
    return "" if sound else "expected files, inputs and goals"


create = Plugin(__name__, Config, Reference, judge, _problem)
