"""Delivered Python files are read and not run: they compile, ruff finds nothing, the types hold (`checks.static`).

Reference: {"paths": ["m.py"], "solution": {...}}. Config says what is asked for: `ruff` names rules ("E9", "F", "B"),
`types` asks mypy, and under `legacy` a finding that the task's own file has already is not held against the policy.
Whatever that file has of public names has to stay, and an unchanged file is no answer. Components: compile, interface,
ruff, types.
"""

from __future__ import annotations

from msgspec import Struct

from temper.verifiers.grading import Given, Judgement, Plugin, Some


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ruff: tuple[str, ...] = ("E9", "F")
    types: bool = False
    legacy: bool = False
    seconds: float = 20.0


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    paths: Some[str]
    solution: dict[str, str] = {}


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    before = given.task.sandbox.files if given.task.sandbox else {}
    new = {path: given.file(path).decode("utf-8", "replace") for path in reference.paths}
    old = {path: before[path].decode("utf-8", "replace") for path in reference.paths if path in before}
    if new == old:
        return Judgement(0.0, "nothing was changed")
    asked = (list(settings.ruff), settings.types, settings.legacy)
    gold = {path: reference.solution.get(path, old.get(path, "")) for path in reference.paths}
    components, why = await given.pool.judge(
        "temper.verifiers.checks.static:check", (new, old, *asked), (gold, old, *asked), bool, settings.seconds
    )
    return Judgement(float(not why), why, components)


def _libraries(settings: Config) -> tuple[str, ...]:
    return ("ruff", "mypy") if settings.types else ("ruff",)


create = Plugin(__name__, Config, Reference, judge, libraries=_libraries, extra="code")
