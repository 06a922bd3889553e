"""Delivered Python files are read and not run: they compile, ruff finds nothing, the types hold (`checks.static`).

Reference: {"paths": ["m.py"], "solution": {...}}. Config says what is asked for: `ruff` names rules ("E9", "F", "B"),
`types` asks mypy, and under `legacy` a finding that the task's own file has already is not held against the policy.
Whatever that file has of public names has to stay, and an unchanged file is no answer. Components: compile, interface,
ruff, types.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.protocols import SandboxBackend
from temper.core.task import Task
from temper.core.trace import Trace
from temper.verifiers.grading import Grader, Judgement, delivered, fingerprint
from temper.verifiers.pool import Pool

_CHECK, _METRICS = "temper.verifiers.checks.static", "temper.verifiers.checks.metrics"


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ruff: tuple[str, ...] = ("E9", "F")
    types: bool = False
    legacy: bool = False
    seconds: float = 20.0


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    paths: list[str]
    solution: dict[str, str] = {}


def create(config: Config | None, pool: Pool, sandboxes: SandboxBackend | None = None) -> Grader:
    settings = config or Config()

    async def judge(task: Task, trace: Trace, artifacts: Mapping[str, bytes], reference: Reference) -> Judgement:
        if not reference.paths:
            raise FaultError("reference-missing", "verifiers.static", "expected paths of Python files")
        given = task.sandbox.files if task.sandbox else {}
        new = {path: delivered(artifacts, path).decode("utf-8", "replace") for path in reference.paths}
        old = {path: given[path].decode("utf-8", "replace") for path in reference.paths if path in given}
        if new == old:
            return Judgement(0.0, "nothing was changed")
        asked = (list(settings.ruff), settings.types, settings.legacy)
        gold = {path: reference.solution.get(path, old.get(path, "")) for path in reference.paths}
        components, why = await pool.judge(
            f"{_CHECK}:check", (new, old, *asked), (gold, old, *asked), bool, settings.seconds
        )
        return Judgement(float(not why), why, components)

    libraries = ("ruff", *(["mypy"] if settings.types else []))
    return Grader("static", fingerprint(settings, __name__, _CHECK, _METRICS, libraries=libraries), Reference, judge)
