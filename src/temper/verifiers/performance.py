"""A delivered function has to be about as fast as the solution: a ratio of CPU time, taken in turns in one box.

Reference: {"module": "m.py", "function": "f", "calls": [[args], ...], "solution": {path: text}, "ratio": 3.0}. Calls
should be so large that a slower way shows (a quadratic one against a linear one), and have answers that tell the
functions apart: what the delivered one gives has to equal, by type and value, what the solution gives.

Both run in processes of their own, side by side, and a third reads their CPU clocks, so that neither a patched clock
nor the load of the machine counts. The box holds no process more, to which work could be handed. The score is 1 if the
least CPU time over some turns, summed over the calls, is at most `ratio` times the solution's. Components: correct,
fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, structs

from temper.core.blame import FaultError
from temper.core.task import Task
from temper.verifiers import boxes
from temper.verifiers.checks.values import encode, faithful
from temper.verifiers.grading import Given, Judgement, Plugin

_PROGRAM = ("temper.verifiers.checks.values", "temper.verifiers.checks.apart", "temper.verifiers.checks.race")
_LEAST = 1e-3  # seconds of CPU below which a ratio would be noise


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 20.0  # wall clock of everything
    turns: int = 5
    python: str = "python3"


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    module: str
    function: str
    calls: list[list[Any]]
    solution: dict[str, str]
    ratio: float = 3.0


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    report = await _race(given, reference, settings, given.files())
    if report is None:
        return Judgement(0.0, "the program ended early")
    if report["broken"]:  # by itself, or by the other, which can send it signals: against itself it shows
        solution = {path: text.encode() for path, text in reference.solution.items()}
        alone = await _race(given, reference, settings, solution)
        if alone is None or alone["broken"]:
            raise FaultError("gold-fails", "verifiers.performance", report["broken"])
        return Judgement(0.0, "the solution was ended while it ran beside the program")
    wrong = report["wrong"]
    components = {"correct": 1 - len(wrong) / len(reference.calls)}
    if wrong:
        return Judgement(0.0, f"call {wrong[0][0] + 1} of {reference.function}: {wrong[0][1]}", components)
    ratio = report["seconds"] / max(report["solution_seconds"], _LEAST)
    fast = ratio <= reference.ratio
    why = f"{reference.function} took more than {reference.ratio:g} times the CPU time of the solution"
    return Judgement(float(fast), "" if fast else why, components | {"fast": float(fast)})


async def _race(
    given: Given, reference: Reference, settings: Config, files: Mapping[str, bytes]
) -> dict[str, Any] | None:
    """What `checks.race` reports of these files against the solution; None where they ended it."""
    spec = structs.replace(boxes.with_files(given.task.sandbox, files), pids=2 * settings.turns + 1)
    stdin, nonce = boxes.job(
        module=boxes.dotted(reference.module), function=reference.function,
        solution=reference.solution[reference.module], calls=[encode(call) for call in reference.calls],
    )  # fmt: skip
    argv = [settings.python, "-I", "-S", "-c", boxes.program(*_PROGRAM), str(settings.turns)]
    done = await boxes.command(given.sandboxes, spec, argv, stdin=stdin, seconds=settings.seconds, where=__name__)
    return boxes.report(done, nonce)


def _problem(reference: Reference, task: Task) -> str:
    sound = reference.calls and reference.module in reference.solution and faithful(encode(reference.calls))
    return "" if sound else "expected calls and the module's solution"


create = Plugin(__name__, Config, Reference, judge, _problem)
