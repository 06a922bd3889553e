"""Graders of one written answer by a check in the pool: what derivations, documents, figures, reports and forms share.

A check is a function `check(text, reference as plain data) -> (right, why not, components)` that runs in a worker. The
gold answer is given to the same check where an answer passes its limit, so that the blame falls on the right side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.task import Task
from temper.core.trace import Trace
from temper.verifiers.grading import Grader, Judgement, delivered, fingerprint
from temper.verifiers.pool import Pool

LONGEST = 64 << 10  # characters of an answer


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 5.0  # limit of one check


def checked(
    plugin: str,
    settings: Config | None,
    pool: Pool,
    reference: type[Struct],
    gold: Callable[[Any], str],
    problem: Callable[[Any], str],
    checks: tuple[str, ...],
    libraries: tuple[str, ...] = (),
    file: str = "",
) -> Grader:
    """A grader around `check` of `checks.NAME`, the first of `checks`; all of them are part of the verifier's hash.

    `problem` says why a reference is none, "" when it is sound; it may raise ValueError. `file` is the artifact that is
    the answer where the task declares it.
    """
    config = settings or Config()
    modules = [f"temper.verifiers.checks.{name}" for name in checks]

    async def judge(task: Task, trace: Trace, artifacts: Mapping[str, bytes], about: Any) -> Judgement:
        try:
            if why := problem(about):
                raise ValueError(why)
        except (ValueError, ZeroDivisionError) as error:
            raise FaultError("reference-missing", plugin, str(error)) from None
        text = trace.answer.encode("utf-8", "replace").decode()  # without lone surrogates
        if file and file in task.artifacts:
            text = delivered(artifacts, file).decode("utf-8", "replace")
        if len(text) > LONGEST:
            return Judgement(0.0, f"the answer has {len(text)} characters, at most {LONGEST} are read")
        known = msgspec.to_builtins(about)
        right, why, components = await pool.judge(
            f"{modules[0]}:check", (text, known), (gold(about), known), lambda found: found[0], config.seconds
        )
        return Judgement(float(right), why, components)

    name = plugin.rpartition(".")[2]
    return Grader(name, fingerprint(config, plugin, __name__, *modules, libraries=libraries), reference, judge)
