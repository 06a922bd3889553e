"""Graders of one written answer by a check in the pool: what derivations, documents, figures, reports and forms share.

A check is a function `check(text, reference as plain data) -> (right, why not, components)` that runs in a worker. The
gold answer is given to the same check where an answer passes its limit, so that the blame falls on the right side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.task import Task
from temper.verifiers.grading import Given, Judgement, Plugin

LONGEST = 64 << 10  # characters of an answer


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 5.0  # limit of one check


def checked(
    module: str,
    config: type[Struct],
    reference: type[Struct],
    gold: Callable[[Any], str],
    problem: Callable[[Any, Task], str] = lambda reference, task: "",
    libraries: tuple[str, ...] = (),
    extra: str = "",
    check: str = "",
    file: str = "",
) -> Plugin:
    """A plugin around `check`, by default the module's own. `file`: the artifact that is the answer, where declared."""

    async def judge(given: Given, about: Any, settings: Any) -> Judgement:
        text = given.answer
        if file and file in given.task.artifacts:
            text = given.file(file).decode("utf-8", "replace")
        if len(text) > LONGEST:
            return Judgement(0.0, f"the answer has {len(text)} characters, at most {LONGEST} are read")
        known = msgspec.to_builtins(about)
        right, why, components = await given.pool.judge(
            check or f"{module}:check", (text, known), (gold(about), known), lambda found: found[0], settings.seconds
        )
        return Judgement(float(right), why, components)

    return Plugin(module, config, reference, judge, problem, lambda _: libraries, extra)
