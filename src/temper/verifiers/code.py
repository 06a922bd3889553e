"""Functions of a delivered module, called in a fresh sandbox and compared here by type and value.

Reference: {"module": "m.py", "cases": [{"function": "f", "args": [...], "kwargs": {...}, "expect": value} or
{..., "raises": "ValueError"}], "solution": {path: text}}. A case may have "tolerance" (relative, for floats) and
"visible": true (its expected value may then be shown). `task.artifacts` are the paths that the policy delivers; every
other file comes fresh from `task.sandbox.files`. Expected values never enter the sandbox.

The score is 1 only if every case passes; the share that passed is a component. 1, 1.0 and True differ, and so do a
tuple and a list; an object that equals everything equals nothing.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import UNSET, Struct, UnsetType, structs

from temper.core.blame import TABLE, FaultError, boundary
from temper.core.protocols import SandboxBackend
from temper.core.task import SandboxSpec, Task
from temper.core.trace import Exit, Trace
from temper.verifiers.checks.values import decode, encode, faithful
from temper.verifiers.grading import Grader, Judgement, delivered, fingerprint, source
from temper.verifiers.pool import Pool

_PARTS = ("temper.verifiers.checks.values", "temper.verifiers.checks.driver")
_OUTPUT = 4 << 20  # bytes that the driver may report


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 10.0  # wall clock of all cases together
    python: str = "python3"  # the interpreter inside the sandbox


class Case(Struct, frozen=True, forbid_unknown_fields=True):
    function: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    expect: Any = UNSET
    raises: str | UnsetType = UNSET
    tolerance: float = 0.0
    visible: bool = False


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    module: str
    cases: list[Case]
    solution: dict[str, str] = {}


def create(config: Config | None, pool: Pool | None, sandboxes: SandboxBackend) -> Grader:
    settings = config or Config()

    async def judge(task: Task, trace: Trace, artifacts: Mapping[str, bytes], reference: Reference) -> Judgement:
        if problem := _problem(task, reference):
            raise FaultError("reference-missing", "verifiers.code", problem)
        files = {path: delivered(artifacts, path) for path in task.artifacts}
        outcomes = await _run(sandboxes, settings, task.sandbox or SandboxSpec(), files, reference)
        failures = [
            why for case, outcome in zip(reference.cases, outcomes, strict=True) if (why := _failure(case, outcome))
        ]
        passed = 1 - len(failures) / len(reference.cases)
        return Judgement(float(not failures), failures[0] if failures else "", {"passed": passed})

    return Grader("code", fingerprint(settings, __name__, *_PARTS), Reference, judge)


def _problem(task: Task, reference: Reference) -> str:
    """Why the reference would pass everything or nothing, "" when it is sound."""
    if not reference.cases or not task.artifacts:
        return "no cases, or no artifact that they could be about"
    if any((case.expect is UNSET) == (case.raises is UNSET) for case in reference.cases):
        return "a case needs either 'expect' or 'raises'"
    plain = [
        [*case.args, *case.kwargs.values(), None if case.expect is UNSET else case.expect] for case in reference.cases
    ]
    return "" if faithful(encode(plain)) else "values of cases have to be plain Python data"


async def _run(
    sandboxes: SandboxBackend, settings: Config, spec: SandboxSpec, files: dict[str, bytes], reference: Reference
) -> list[tuple[str, Any, str]]:
    """The outcome of each case. Raises FaultError for limits (the policy's) and for lost sandboxes (ours)."""
    nonce = secrets.token_hex(16)
    module = reference.module.removesuffix(".py").replace("/", ".")
    calls = [
        {
            "function": c.function,
            "args": [encode(a) for a in c.args],
            "kwargs": {k: encode(v) for k, v in c.kwargs.items()},
        }
        for c in reference.cases
    ]
    job = json.dumps({"nonce": nonce, "module": module, "calls": calls}).encode()
    spec = structs.replace(spec, files={**spec.files, **files}, output=max(spec.output, _OUTPUT))
    with boundary("backend-lost", "verifiers.code"):
        box = await sandboxes.open(spec)
        try:
            done = await box.exec([settings.python, "-I", "-S", "-c", _driver()], stdin=job, seconds=settings.seconds)
        finally:
            await box.close()
    if TABLE[done.cause].training != "score":
        raise FaultError(done.cause, "verifiers.code", f"while the tests ran: {done.evidence}")
    return _outcomes(done, nonce, len(calls))


def _outcomes(done: Exit, nonce: str, n: int) -> list[tuple[str, Any, str]]:
    """(kind, content, text) a case. A candidate that ended the driver, or wrote out of form, has none of use."""
    outcomes: Any = None
    with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
        report = json.loads(done.stdout.strip().rpartition(b"\n")[2])
        outcomes = report["outcomes"] if report["nonce"] == nonce else None
    if not isinstance(outcomes, list) or len(outcomes) != n:
        return [("gone", f"the tests ended early ({done.cause} {done.code})", "")] * n
    return [_outcome(outcome) for outcome in outcomes]


def _outcome(outcome: Any) -> tuple[str, Any, str]:
    match outcome:
        case ["value", [str(), *_] as form]:
            return "value", form, ""
        case ["raised", [str(), *_] as names, str() as text]:
            return "raised", names, text
        case ["gone", str() as text]:
            return "gone", text, ""
    return "gone", "the answer was out of form", ""


def _failure(case: Case, outcome: tuple[str, Any, str]) -> str:
    """ "" when the case passes, else why not. Expected values are named for visible cases only."""
    kind, content, text = outcome
    call = f"{case.function}({', '.join(map(repr, case.args))})"[:200]
    wanted = f", expected {case.expect!r}" if case.visible else ""
    if case.raises is not UNSET:
        wanted = f", expected {case.raises} to be raised" if case.visible else ""
        if kind == "raised" and case.raises in content:
            return ""
    elif kind == "value" and _same(encode(case.expect), content, case.tolerance):
        return ""
    if kind == "raised":
        return f"{call} raised {content[0]}: {text}{wanted}"
    if kind == "value":
        return f"{call} returned {_shown(content)}, which is wrong{wanted}"
    return f"{call}: {content}{wanted}"


def _same(expected: Any, got: Any, tolerance: float) -> bool:
    if not tolerance:
        return expected == got
    if isinstance(expected, list) and isinstance(got, list) and expected[:1] == got[:1] == ["float"] and len(got) == 2:
        try:
            return math.isclose(float.fromhex(expected[1]), float.fromhex(got[1]), rel_tol=tolerance, abs_tol=tolerance)
        except (ValueError, TypeError, OverflowError):
            return False
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        return all(_same(e, g, tolerance) for e, g in zip(expected, got, strict=True))
    return expected == got


def _shown(form: Any) -> str:
    try:
        if form[0] == "object":
            return f"an object of type {form[1]}"
        return repr(decode(form))[:200]
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):  # forged by the candidate
        return "something out of form"


@cache
def _driver() -> str:
    """`values` and `driver` as one program; a program has one `from __future__`, at its top."""
    lines = [line for part in _PARTS for line in source(part).splitlines()]
    lines = [line for line in lines if not line.startswith(("from __future__", "from temper"))]
    return "\n".join(["from __future__ import annotations", *lines])
