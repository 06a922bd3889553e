"""The whole answer equals the reference, or one of several. Nothing is searched for inside the answer.

Reference: {"answer": "Paris"} or {"answer": ["Paris", "Paris, France"]} (any of).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.protocols import SandboxBackend
from temper.core.task import Task
from temper.core.trace import Trace
from temper.verifiers.grading import Grader, Judgement, fingerprint
from temper.verifiers.pool import Pool


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    strip: bool = True  # white space around the answer does not count
    casefold: bool = True  # nor do capitals


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    answer: str | list[str]


def create(config: Config | None = None, pool: Pool | None = None, sandboxes: SandboxBackend | None = None) -> Grader:
    config = config or Config()

    async def judge(task: Task, trace: Trace, artifacts: Mapping[str, bytes], reference: Reference) -> Judgement:
        golds = [reference.answer] if isinstance(reference.answer, str) else reference.answer
        if not golds or not all(normal(gold, config) for gold in golds):
            raise FaultError("reference-missing", "verifiers.exact", "an empty answer would pass by saying nothing")
        longest = max(len(gold) for gold in golds)
        answer = trace.answer if len(trace.answer) < 4 * longest + 1000 else ""  # folding a huge text takes long
        right = normal(answer, config) in {normal(gold, config) for gold in golds}
        return Judgement(float(right), "" if right else f"{answer[:80]!r} is not the expected answer")

    return Grader("exact", fingerprint(config, __name__), Reference, judge)


def normal(text: str, config: Config) -> str:
    text = unicodedata.normalize("NFC", text)
    text = text.strip() if config.strip else text
    return text.casefold() if config.casefold else text
