"""The answer to a question about a table: values, or a list of them, by what they denote (`checks.tables`).

Reference: {"answer": ["3.5 km", "Ann"]}. Numbers, units, dates and words may be written in any usual way; several items
are a multiset, and every one of them has to be there and no other. Read is what follows the last "answer:", else the
last line; items are separated by "|", ";", line ends or commas.
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

_CHECK = "temper.verifiers.checks.tables"
_TAIL = 8 << 10  # characters of an answer's end that are looked at


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 2.0


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    answer: list[str]


def create(config: Config | None, pool: Pool, sandboxes: SandboxBackend | None = None) -> Grader:
    settings = config or Config()

    async def judge(task: Task, trace: Trace, artifacts: Mapping[str, bytes], reference: Reference) -> Judgement:
        gold = reference.answer
        if not gold or not all(item.strip() for item in gold):
            raise FaultError("reference-missing", "verifiers.tables", "expected values that are not empty")
        text = trace.answer[-_TAIL:].encode("utf-8", "replace").decode()  # without lone surrogates
        right, why = await pool.judge(
            f"{_CHECK}:check", (text, gold), (" | ".join(gold), gold), lambda found: found[0], settings.seconds
        )
        return Judgement(float(right), why)

    return Grader("tables", fingerprint(settings, __name__, _CHECK), Reference, judge)
