"""NAME: the answer is the expected word.

Reference: {"answer": "Paris"}. State here what a right answer is, what counts as the same, and what does not.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.protocols import SandboxBackend
from temper.core.task import Case, Message, Task
from temper.core.trace import Trace
from temper.verifiers.grading import Grader, Judgement, fingerprint
from temper.verifiers.pool import Pool


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 2.0  # limit of one check


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    answer: str


def create(config: Config | None, pool: Pool, sandboxes: SandboxBackend | None = None) -> Grader:
    settings = config or Config()

    async def judge(task: Task, trace: Trace, artifacts: Mapping[str, bytes], reference: Reference) -> Judgement:
        gold = reference.answer
        if not gold.strip():
            raise FaultError("reference-missing", __name__, "an empty answer would pass by saying nothing")
        said = trace.answer.encode("utf-8", "replace").decode()  # a lone surrogate could not be sent to a worker
        right = await pool.judge(f"{__name__}:check", (said, gold), (gold, gold), bool, settings.seconds)
        return Judgement(float(right), "" if right else f"{said[:80]!r} is not the expected answer")

    return Grader("NAME", fingerprint(settings, __name__), Reference, judge)


def check(said: str, gold: str) -> bool:
    """Runs in a killable worker, as everything should that looks at model output."""
    return said.strip().casefold() == gold.strip().casefold()


def specimen() -> tuple[Task, tuple[Case, ...]]:
    """A task with answers whose grades are known: what `temper check verifier` tries it on."""
    task = Task(id="specimen", domain="specimen", messages=(Message("user", "?"),), reference={"answer": "Paris"})
    return task, (
        Case(right=True, why="as it is", answer="Paris"),
        Case(right=True, why="in small letters", answer="paris\n"),
        Case(right=False, why="a letter more", answer="Pariss"),
        Case(right=False, why="another word", answer="London"),
    )
