"""The answer equals the reference; how far it is from it is the reward that training sees.

Reference: {"answer": "..."}, as for `exact`, but capitals count. The score, which is for people, is 1 or 0. The reward,
and the component `similarity`, is difflib's ratio, 2 * (characters in matching blocks) / (characters of both), which
public tasks such as reverse-text call the LCS ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher

from msgspec.structs import replace

from temper.core.protocols import SandboxBackend
from temper.core.task import Task
from temper.core.trace import Trace, Verdict
from temper.verifiers import exact
from temper.verifiers.grading import fingerprint
from temper.verifiers.pool import Pool

_EXACT = exact.Config(casefold=False)


def create(config: None = None, pool: Pool | None = None, sandboxes: SandboxBackend | None = None) -> Similarity:
    return Similarity()


class Similarity:
    """`core.protocols.Verifier`."""

    name = "similarity"

    def __init__(self) -> None:
        self.hash = fingerprint(_EXACT, __name__, exact.__name__)
        self._exact = exact.create(_EXACT)

    async def grade(self, task: Task, trace: Trace, artifacts: Mapping[str, bytes]) -> Verdict:
        verdict = replace(await self._exact.grade(task, trace, artifacts), verifier=self.hash)
        if verdict.masked:
            return verdict
        golds = task.reference["answer"]
        near = max(closeness(trace.answer, gold) for gold in ([golds] if isinstance(golds, str) else golds))
        rewards = {len(trace.segments) - 1: near} if trace.segments else {}
        return replace(verdict, rewards=rewards, components={"similarity": near})


def closeness(answer: str, gold: str) -> float:
    """difflib's ratio of what was said to what was wanted; 0 for an answer so long that comparing it takes long."""
    said, wanted = exact.normal(answer[: 4 * len(gold) + 100], _EXACT), exact.normal(gold, _EXACT)
    return SequenceMatcher(None, said, wanted).ratio() if len(answer) <= 4 * len(gold) + 100 else 0.0
