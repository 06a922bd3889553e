"""Functions of a delivered module, called in a fresh sandbox and compared here by type and value.

Reference: {"module": "m.py", "cases": [{"function": "f", "args": [...], "kwargs": {...}, "expect": value} or
{..., "raises": "ValueError"}], "solution": {path: text}}. A case may have "tolerance" (relative, for floats),
"visible": true (its expected value may then be shown), "watch": true (expected is then a tuple of the value and the
list of the arguments as they are after the call) and "schedules": n (it has to pass under each of n seeded schedules
of its threads and tasks: `checks.schedules`). `task.artifacts` are the paths that the policy delivers; every
other file comes fresh from `task.sandbox.files`. Expected values never enter the sandbox.

The score is 1 only if every case passes; the share that passed is a component. 1, 1.0 and True differ, and so do a
tuple and a list; an object that equals everything equals nothing.
"""

from __future__ import annotations

import json
import marshal
import math
import secrets
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from temper.core.protocols import SandboxBackend
from temper.core.task import SandboxSpec, Task
from temper.verifiers import boxes
from temper.verifiers.checks.values import decode, encode, faithful, normal
from temper.verifiers.grading import Given, Judgement, Plugin

_SIDES = ("temper.verifiers.checks.values", "temper.verifiers.checks.apart")
_SCHEDULES, _DRIVER = "temper.verifiers.checks.schedules", "temper.verifiers.checks.driver"
_GONE = "gone"


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 10.0  # wall clock of all cases together
    interpreter: boxes.Interpreter = boxes.Interpreter()


class Case(Struct, frozen=True, forbid_unknown_fields=True):
    function: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    expect: Any = UNSET
    raises: str | UnsetType = UNSET
    tolerance: float = 0.0
    visible: bool = False
    schedules: int = 0
    watch: bool = False


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    module: str
    cases: list[Case]
    solution: dict[str, str] = {}


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    spec = boxes.with_files(given.task.sandbox, given.files())
    outcomes = await outcomes_of(given.sandboxes, spec, reference.module, reference.cases, settings)
    whys = [_failure(case, outcome) for case, outcome in zip(reference.cases, outcomes, strict=True)]
    groups: dict[str, list[str]] = {"visible": [], "hidden": []}
    for case, why in zip(reference.cases, whys, strict=True):
        groups["visible" if case.visible else "hidden"].append(why)
    groups = {"passed": whys, **(groups if all(groups.values()) else {})}
    components = {name: found.count("") / len(found) for name, found in groups.items()}
    return Judgement(float(not any(whys)), next(filter(None, whys), ""), components)


async def outcomes_of(
    sandboxes: SandboxBackend, spec: SandboxSpec, module: str, cases: list[Case], settings: Config
) -> list[Any]:
    """The outcome of each case (`checks.driver`). A candidate that ended the driver, or wrote out of form, has none."""
    calls = [
        {
            "function": c.function,
            "args": [encode(a) for a in c.args],
            "kwargs": {k: encode(v) for k, v in c.kwargs.items()},
            "schedules": c.schedules,
            "watch": c.watch,
        }
        for c in cases
    ]
    parts = (*_SIDES, *([_SCHEDULES] if any(c.schedules for c in cases) else []), _DRIVER)
    nonce = secrets.token_hex(16)
    stdin = marshal.dumps({"nonce": nonce, "module": boxes.dotted(module), "calls": calls}, 2)
    done = await boxes.run(
        sandboxes, spec, boxes.program(*parts), settings.interpreter,
        stdin=stdin, seconds=settings.seconds, where="verifiers.code",
    )  # fmt: skip
    lines = done.stdout.partition(b"\n" + nonce.encode() + b"\n")[2].split(b"\n")[:-1]
    if len(lines) != len(cases):
        return [[_GONE, f"the tests ended early ({done.cause} {done.code})"]] * len(cases)
    return [_read(line) for line in lines]


def _read(line: bytes) -> Any:
    try:
        return normal(json.loads(line))
    except (ValueError, RecursionError):  # forged by the candidate
        return None


def _problem(reference: Reference, task: Task) -> str:
    """Why it would pass everything or nothing."""
    if not reference.cases or not task.artifacts:
        return "no cases, or no artifact that they could be about"
    if any((case.expect is UNSET) == (case.raises is UNSET) for case in reference.cases):
        return "a case needs either 'expect' or 'raises'"
    plain = [[*c.args, *c.kwargs.values(), None if c.expect is UNSET else c.expect] for c in reference.cases]
    return "" if faithful(encode(plain)) else "values of cases have to be plain Python data"


def _failure(case: Case, outcome: Any) -> str:
    """ "" when the case passes, else why not. Expected values are named for visible cases only."""
    call = f"{case.function}({', '.join(map(repr, case.args))})"[:200]
    wanted = f"{case.raises} to be raised" if case.raises is not UNSET else repr(case.expect)
    wanted = f", expected {wanted}" if case.visible else ""
    match outcome:
        case ["each", [_, *_] as outcomes] if case.schedules:
            failures = [why for each in outcomes if (why := _failure(case, each))]
            return f"under one of {case.schedules} schedules, {failures[0]}" if failures else ""
        case ["value", [str(), *_] as form]:
            if case.raises is UNSET and _same(normal(encode(case.expect)), form, case.tolerance):
                return ""
            return f"{call} returned {_shown(form)}, which is wrong{wanted}"
        case ["raised", [str() as name, *_] as names, str() as text]:
            return "" if case.raises in names else f"{call} raised {name}: {text}{wanted}"
        case [str(), str() as text]:
            return f"{call}: {text}{wanted}"
    return f"{call}: the answer was out of form{wanted}"


def _same(expected: Any, got: Any, tolerance: float) -> bool:
    if not tolerance or expected == got:
        return expected == got
    if isinstance(expected, list) and isinstance(got, list) and expected[:1] == got[:1] == ["float"] and len(got) == 2:
        try:
            return math.isclose(float.fromhex(expected[1]), float.fromhex(got[1]), rel_tol=tolerance, abs_tol=tolerance)
        except (ValueError, TypeError, OverflowError):
            return False
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        return all(_same(e, g, tolerance) for e, g in zip(expected, got, strict=True))
    return False


def _shown(form: Any) -> str:
    try:
        if form[0] == "object":
            return f"an object of type {form[1]}"
        return repr(decode(form))[:200]
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):  # forged by the candidate
        return "something out of form"


create = Plugin(__name__, Config, Reference, judge, _problem)
