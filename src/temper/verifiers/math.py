"""The final answer of a calculation: exact rational arithmetic first, then expressions by value (`checks`).

Reference: {"answer": "3/4"}. LaTeX or plain; several answers as "1, 2" or "\\{1, 2\\}" (all of them, any order),
tuples and intervals with their brackets, numbers with their units. How the answer is found in the text, and which
readings it may have, is in `checks.answers`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.protocols import SandboxBackend
from temper.core.task import Task
from temper.core.trace import Trace
from temper.verifiers.grading import Grader, Judgement, fingerprint
from temper.verifiers.pool import Pool

_EXACT, _SYMBOLIC, *_PARTS = (
    f"temper.verifiers.checks.{name}" for name in ("answers", "symbolic", "rationals", "units")
)  # fmt: skip
_LIBRARIES = ("math-verify", "latex2sympy2_extended", "sympy")
_TAIL = 16 << 10  # characters of an answer's end that are looked at


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 3.0  # limit of one comparison


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    answer: str


def create(config: Config | None, pool: Pool, sandboxes: SandboxBackend | None = None) -> Grader:
    settings = config or Config()

    async def judge(task: Task, trace: Trace, artifacts: Mapping[str, bytes], reference: Reference) -> Judgement:
        gold, seconds = reference.answer, settings.seconds
        if not gold.strip():
            raise FaultError("reference-missing", "verifiers.math", "the expected answer is empty")
        text = trace.answer[-_TAIL:].encode("utf-8", "replace").decode()  # without lone surrogates
        boxed = f"\\boxed{{{gold}}}"
        kind, answer = await pool.judge(
            f"{_EXACT}:check", (text, gold), (boxed, gold), lambda found: found[0] in ("right", "unsure"), seconds
        )
        right = kind == "right"
        if kind == "unsure":
            right = await pool.judge(f"{_SYMBOLIC}:check", (answer, gold), (gold, gold), bool, seconds)
        why = f"read the answer as {answer[:80]!r}, which is not right" if answer else "found no final answer"
        return Judgement(float(right), "" if right else why)

    return Grader(
        "math", fingerprint(settings, __name__, _EXACT, _SYMBOLIC, *_PARTS, libraries=_LIBRARIES), Reference, judge
    )
