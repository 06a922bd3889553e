"""A delivered program, run with given arguments and input in a fresh box, has to print what is expected.

Reference: {"path": "main.py", "runs": [{"args": [...], "stdin": "...", "stdout": "...", "code": 0, "files": {path:
text}}], "solution": {path: text}}. Config.compare: "lines" (white space at the ends of lines and of the output does not
count), "exact" (bytes), or "words" (any white space separates; numbers within `tolerance`). Expected output never
enters the box. Each run has a box of its own, so that none learns from another.
"""

from __future__ import annotations

import asyncio
import math
from typing import Literal

from msgspec import Struct

from temper.core.protocols import SandboxBackend
from temper.core.task import SandboxSpec, Task
from temper.verifiers import boxes
from temper.verifiers.grading import Given, Judgement, Plugin


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 10.0  # wall clock of one run
    command: tuple[str, ...] = ("python3",)  # what runs the program
    compare: Literal["lines", "exact", "words"] = "lines"
    tolerance: float = 1e-9  # relative, of numbers among words


class Run(Struct, frozen=True, forbid_unknown_fields=True):
    stdout: str
    args: list[str] = []
    stdin: str = ""
    code: int = 0
    files: dict[str, str] = {}


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    runs: list[Run]
    solution: dict[str, str] = {}


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    spec = boxes.with_files(given.task.sandbox, given.files())
    runs = (why_not(given.sandboxes, settings, spec, reference.path, run) for run in reference.runs)
    whys = await asyncio.gather(*runs)
    return Judgement(float(not any(whys)), next(filter(None, whys), ""), {"passed": whys.count("") / len(whys)})


def _problem(reference: Reference, task: Task) -> str:
    return "" if any(run.stdout.strip() for run in reference.runs) else "expected a run that prints something"


async def why_not(sandboxes: SandboxBackend, settings: Config, spec: SandboxSpec, path: str, run: Run) -> str:
    """ "" when the run is right."""
    spec = boxes.with_files(spec, {name: text.encode() for name, text in run.files.items()})
    argv = [*settings.command, path, *run.args]
    done = await boxes.command(
        sandboxes, spec, argv, stdin=run.stdin.encode(), seconds=settings.seconds, where="verifiers.output"
    )
    if (done.cause, done.code) != ("exited", run.code):
        return f"{path} {done.cause} with {done.code}, expected an exit with {run.code}"
    if not matches(run.stdout, done.stdout.decode("utf-8", "replace"), settings.compare, settings.tolerance):
        return f"{path} printed {done.stdout[:200].decode('utf-8', 'replace')!r}, which is not what was expected"
    return ""


def matches(expected: str, got: str, compare: str = "lines", tolerance: float = 0.0) -> bool:
    if compare == "exact":
        return expected == got
    if compare == "lines":
        left, right = ([line.rstrip() for line in text.rstrip().split("\n")] for text in (expected, got))
        return left == right
    words = expected.split(), got.split()
    return len(words[0]) == len(words[1]) and all(_close(a, b, tolerance) for a, b in zip(*words, strict=True))


def _close(expected: str, got: str, tolerance: float) -> bool:
    if expected == got or "_" in got:  # Python alone reads 1_0 as a number
        return expected == got
    try:
        return math.isclose(float(expected), float(got), rel_tol=tolerance, abs_tol=tolerance)
    except ValueError:
        return False


create = Plugin(__name__, Config, Reference, judge, _problem)
