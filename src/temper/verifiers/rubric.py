"""An answer against weighted criteria, each met or not in the eyes of a panel of chat models (`judging`).

Reference: {"criteria": [{"id": "names-the-risk", "text": "The answer names ...", "points": 5}, ...]}; negative points
are for what should not be there. Score: the points met over the positive points, within [0, 1], as in HealthBench.
Every judge is asked twice, the second time with the criteria in reverse order, and a criterion counts by its share of
votes. Components: one a criterion, and `agreement`, the mean share of the majority.
"""

from __future__ import annotations

from msgspec import Struct

from temper.core.task import Task
from temper.verifiers import judging
from temper.verifiers.grading import Given, Judgement, Plugin

Config = judging.Config
_ASK = "Judge the answer to the request: is each of the items met by the answer?"


class Criterion(Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    text: str
    points: float = 1.0


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    criteria: list[Criterion]


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    if not given.answer.strip():
        return Judgement(0.0, "the answer is empty")
    criteria = reference.criteria
    materials = tuple(judging.texts(given.task.messages, given.answer).items())
    questions = [
        judging.Question(materials, {c.id: c.text for c in order}, ("met", "unmet"), _ASK)
        for order in (criteria, criteria[::-1])
    ]
    votes = [vote for one in await judging.verdicts(given.state, questions, settings) for vote in one]
    met = {c.id: sum(vote[c.id] == "met" for vote in votes) / len(votes) for c in criteria}
    score = min(1.0, max(0.0, sum(c.points * met[c.id] for c in criteria) / _total(reference)))
    missed = [c.text for c in criteria if c.points and (met[c.id] < 1 if c.points > 0 else met[c.id] > 0)]
    why = f"not as it should be: {'; '.join(missed)}"[:500] if missed else ""
    agreement = sum(max(share, 1 - share) for share in met.values()) / len(met)
    return Judgement(score, why, {**met, "agreement": agreement})


def _problem(reference: Reference, task: Task) -> str:
    distinct = len({criterion.id for criterion in reference.criteria}) == len(reference.criteria)
    return "" if distinct and _total(reference) else "expected distinct criteria, some worth points"


def _total(reference: Reference) -> float:
    return sum(max(0.0, criterion.points) for criterion in reference.criteria)


create = Plugin(__name__, Config, Reference, judge, _problem, prepare=judging.panel)
