"""Unit tests of delivered files, in a fresh box: every fail-to-pass test has to pass, no pass-to-pass test may fail.

Reference: {"tests": {path: source}, "fail_to_pass": [ids], "pass_to_pass": [ids], "visible": [ids], "cover": 0.9,
"solution": {path: text}}, ids as pytest writes them: "test_m.py::test_f[1]". An id also stands for all ids that begin
with it and "[" or "::". The tests come from the reference and nobody else: an edited or deleted test file, and a
conftest, pytest.ini, sitecustomize or .pth that the task's own files do not have, are not delivered to the box.

Config.runner: "isolated" (plain functions and classes; the tests' process never runs delivered code, `checks.remote`)
or "pytest" (fixtures, parameters, mocks: what repositories need, `checks.pytest_run`). Under pytest tests and delivered
code share a process, so that code written against this very grader could forge a pass; what the attack corpus knows
does not: results are named one by one, equality is strict, and tests that have to fail are run along.

Components: fail_to_pass, pass_to_pass, visible, hidden (shares that passed), covered (share of the changed lines that
the tests ran). With "cover" at least that share is needed. What fails is explained for visible tests only.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib.util
import io
import secrets
import zipfile
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from temper.core.errors import MissingError
from temper.core.task import SandboxSpec, Task
from temper.verifiers import boxes
from temper.verifiers.grading import Given, Judgement, Plugin

_SIDES = ("temper.verifiers.checks.values", "temper.verifiers.checks.apart")
_REMOTE = ("temper.verifiers.checks.candidate", "temper.verifiers.checks.remote")
_PYTEST = "temper.verifiers.checks.pytest_run"
_STEERING = (
    "conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "sitecustomize.py",
    "usercustomize.py", "*.pth",
)  # fmt: skip
_BUNDLED = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
_BUNDLE = ".pytest.zip"


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 30.0  # wall clock of all tests together
    runner: Literal["isolated", "pytest"] = "isolated"
    interpreter: boxes.Interpreter = boxes.Interpreter()


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    tests: dict[str, str]
    fail_to_pass: list[str]
    pass_to_pass: list[str] = []
    visible: list[str] = []
    cover: float = 0.0
    solution: dict[str, str] = {}


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    spec = given.task.sandbox or SandboxSpec()
    files = {path: given.file(path) for path in given.task.artifacts if not _steers(path, reference)}
    lines = {path: _changed(spec.files.get(path, b""), text) for path, text in files.items() if path[-3:] == ".py"}
    report = await _run(given, settings, boxes.with_files(spec, files), reference, lines)
    return _judgement(report or {}, reference)


def _problem(reference: Reference, task: Task) -> str:
    sound = reference.tests and reference.fail_to_pass and task.artifacts
    return "" if sound else "expected tests, fail_to_pass ids and artifacts"


def _steers(path: str, reference: Reference) -> bool:
    """A delivered file that could decide about tests: it stays as the task has it."""
    return path in reference.tests or any(fnmatch(path.rpartition("/")[2], name) for name in _STEERING)


async def _run(
    given: Given, settings: Config, spec: SandboxSpec, reference: Reference, lines: dict[str, list[int]]
) -> dict[str, Any] | None:
    more: dict[str, Any] = {"lines": lines if reference.cover else {}}
    if settings.runner == "isolated":
        code = {boxes.dotted(path) for path in spec.files if path.endswith(".py") and path not in reference.tests}
        more |= {"tests": reference.tests, "modules": sorted(code)}
        program = boxes.program(*_SIDES, *_REMOTE)
    else:
        canary = f"test_{secrets.token_hex(8)}.py"
        more |= {"tests": [*reference.tests, canary], "delivered": sorted(lines), "bundle": _BUNDLE}
        tests = {path: source.encode() for path, source in reference.tests.items()}
        bundle = await asyncio.to_thread(_bundle)
        spec = boxes.with_files(spec, tests, {canary: _CANARY.encode(), _BUNDLE: bundle})
        program = boxes.program(*_SIDES, _PYTEST)
    stdin, nonce = boxes.job(**more)
    done = await boxes.run(
        given.sandboxes, spec, program, settings.interpreter, stdin=stdin, seconds=settings.seconds, where=__name__
    )
    report = boxes.report(done, nonce)
    if report and settings.runner == "pytest":
        canaries = [report["outcomes"].pop(name, ["gone"])[0] for name in (f"{canary}::test_a", f"{canary}::test_b")]
        return report if canaries == ["failed", "failed"] else None
    return report


_CANARY = """
def test_a():
    assert object() == 1


def test_b():
    raise ValueError
"""


def _judgement(report: dict[str, Any], reference: Reference) -> Judgement:
    outcomes: dict[str, list[str]] = report.get("outcomes", {})
    failed: dict[str, list[list[str]]] = {}
    for ids, fine in ((reference.fail_to_pass, {"passed"}), (reference.pass_to_pass, {"passed", "skipped"})):
        ended = {id: _ended(outcomes, id) for id in ids}
        failed |= {id: found for id, found in ended.items() if not {one[0] for one in found} <= fine}
    every = [*reference.fail_to_pass, *reference.pass_to_pass]
    groups = {
        "fail_to_pass": reference.fail_to_pass,
        "pass_to_pass": reference.pass_to_pass,
        "visible": [id for id in every if id in reference.visible],
        "hidden": [id for id in every if id not in reference.visible],
    }
    components = {name: 1 - sum(id in failed for id in ids) / len(ids) for name, ids in groups.items() if ids}
    whys = [_why(id, failed[id], id in reference.visible) for id in failed]
    if reference.cover:
        executed, asked = report.get("covered", [0, 1])
        components["covered"] = executed / asked if asked else 1.0
        if components["covered"] < reference.cover:
            whys = [*whys[:2], f"the tests run {executed} of the {asked} lines that were changed"]
    return Judgement.of(whys, components)


def _ended(outcomes: dict[str, list[str]], id: str) -> list[list[str]]:
    """How the tests of that name ended; a test of which nothing was heard is gone."""
    found = [ended for name, ended in outcomes.items() if name == id or name.startswith((f"{id}[", f"{id}::"))]
    return found or [["gone", "it was not run, or the tests ended early"]]


def _why(id: str, ended: list[list[str]], visible: bool) -> str:
    kind, text = next(((kind, text) for kind, text in ended if kind != "passed"), ended[0])
    if visible or kind == "gone":
        return f"{id} {kind}: {text}"
    return f"a hidden test {kind}"


def _changed(old: bytes, new: bytes) -> list[int]:
    """Numbers of the lines of `new` that are not in `old` and hold code."""
    before, after = (text.decode("utf-8", "replace").split("\n") for text in (old, new))
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    numbers = [n for kind, _, _, start, stop in blocks if kind in ("replace", "insert") for n in range(start, stop)]
    return [
        n + 1 for n in numbers if after[n].strip() and not after[n].lstrip().startswith(("#", '"""', "def ", "class "))
    ]


@cache
def _bundle() -> bytes:
    """Our own pytest as one file that Python can import from. Raises MissingError where it is not installed."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name in _BUNDLED:
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin is None:
                raise MissingError(f"tests under pytest need {name}: pip install 'temper-rl[code]'")
            top = Path(spec.origin).parent
            whole = spec.submodule_search_locations is not None  # a package, not a module alone
            for path in sorted(top.rglob("*.py")) if whole else [Path(spec.origin)]:
                if "lexers" in path.parts and path.stem not in ("__init__", "_mapping", "python", "diff"):
                    continue
                compiled = Path(importlib.util.cache_from_source(str(path)))
                inside = f"{name}/{path.relative_to(top).as_posix()}" if whole else path.name
                if compiled.exists():
                    archive.write(compiled, f"{inside}c")
                else:
                    archive.write(path, inside)
    return held.getvalue()


create = Plugin(__name__, Config, Reference, judge, _problem, lambda s: ("pytest",) * (s.runner == "pytest"), "code")
