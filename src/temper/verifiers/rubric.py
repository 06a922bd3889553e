"""An answer against weighted criteria, each met or not in the eyes of a panel of chat models (`judging`).

Reference: {"criteria": [{"id": "names-the-risk", "text": "The answer names ...", "points": 5}, ...]}; negative points
are for what should not be there. Score: the points met over the positive points, within [0, 1], as in HealthBench.
Every judge is asked twice, the second time with the criteria in reverse order, and a criterion counts by its share of
votes. Components: one a criterion, and `agreement`, the mean share of the majority.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.protocols import SandboxBackend
from temper.core.task import Task
from temper.core.trace import Trace
from temper.verifiers import judging
from temper.verifiers.grading import Grader, Judgement, fingerprint
from temper.verifiers.pool import Pool

Config = judging.Config
_ASK = "Judge the answer to the request: is each of the items met by the answer?"


class Criterion(Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    text: str
    points: float = 1.0


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    criteria: list[Criterion]


def create(config: Config, pool: Pool | None = None, sandboxes: SandboxBackend | None = None) -> Grader:
    judges = judging.panel(config)

    async def judge(task: Task, trace: Trace, artifacts: Mapping[str, bytes], reference: Reference) -> Judgement:
        criteria = reference.criteria
        total = sum(max(0.0, criterion.points) for criterion in criteria)
        if not total or len({criterion.id for criterion in criteria}) < len(criteria):
            raise FaultError("reference-missing", "verifiers.rubric", "expected distinct criteria, some worth points")
        if not trace.answer.strip():
            return Judgement(0.0, "the answer is empty")
        materials = tuple(judging.texts(task.messages, trace.answer).items())
        questions = [
            judging.Question(materials, {c.id: c.text for c in order}, ("met", "unmet"), _ASK)
            for order in (criteria, criteria[::-1])
        ]
        votes = [vote for one in await judging.verdicts(judges, questions, config) for vote in one]
        met = {c.id: sum(vote[c.id] == "met" for vote in votes) / len(votes) for c in criteria}
        score = min(1.0, max(0.0, sum(c.points * met[c.id] for c in criteria) / total))
        missed = [c.text for c in criteria if (met[c.id] < 1) == (c.points > 0) and c.points]
        agreement = sum(max(share, 1 - share) for share in met.values()) / len(met)
        return Judgement(
            score, f"not as it should be: {'; '.join(missed)}"[:500] if missed else "", met | {"agreement": agreement}
        )

    return Grader("rubric", fingerprint(config, __name__, judging.__name__), Reference, judge)
