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
from temper.core.protocols import SandboxBackend
from temper.core.task import Task
from temper.core.trace import Trace
from temper.verifiers import boxes
from temper.verifiers.checks.values import encode, faithful
from temper.verifiers.grading import Grader, Judgement, delivered, fingerprint
from temper.verifiers.pool import Pool

_VALUES, _RACE = "temper.verifiers.checks.values", "temper.verifiers.checks.race"
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


def create(config: Config | None, pool: Pool | None, sandboxes: SandboxBackend) -> Grader:
    settings = config or Config()

    async def judge(task: Task, trace: Trace, artifacts: Mapping[str, bytes], reference: Reference) -> Judgement:
        if not (reference.calls and reference.module in reference.solution and faithful(encode(reference.calls))):
            raise FaultError("reference-missing", "verifiers.performance", "expected calls and the module's solution")
        files = {path: delivered(artifacts, path) for path in task.artifacts}
        spec = structs.replace(boxes.with_files(task.sandbox, files), pids=2 * settings.turns + 1)
        stdin, nonce = boxes.job(
            module=reference.module.removesuffix(".py").replace("/", "."), function=reference.function,
            solution=reference.solution[reference.module], calls=[encode(call) for call in reference.calls],
        )  # fmt: skip
        argv = [settings.python, "-I", "-S", "-c", boxes.program(_VALUES, _RACE), str(settings.turns)]
        done = await boxes.command(sandboxes, spec, argv, stdin=stdin, seconds=settings.seconds, where=__name__)
        return _judgement(boxes.report(done, nonce), reference)

    parts = (__name__, boxes.__name__, _VALUES, _RACE)
    return Grader("performance", fingerprint(settings, *parts), Reference, judge)


def _judgement(report: dict[str, Any] | None, reference: Reference) -> Judgement:
    if report is None:
        return Judgement(0.0, "the program ended early")
    if report["broken"]:
        raise FaultError("gold-fails", "verifiers.performance", report["broken"])
    wrong = report["wrong"]
    components = {"correct": 1 - len(wrong) / len(reference.calls)}
    if wrong:
        return Judgement(0.0, f"call {wrong[0][0] + 1} of {reference.function}: {wrong[0][1]}", components)
    ratio = report["seconds"] / max(report["solution_seconds"], _LEAST)
    fast = ratio <= reference.ratio
    why = f"{reference.function} took more than {reference.ratio:g} times the CPU time of the solution"
    return Judgement(float(fast), "" if fast else why, components | {"fast": float(fast)})
