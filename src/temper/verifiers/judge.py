"""An answer against a reference answer: is it at least as good, in the eyes of a panel of chat models (`judging`)?

Reference: {"answer": a good answer, "criteria": what counts}. Every judge sees the two in both orders, and the score is
the share of these comparisons in which the answer is better or as good; a judge that merely prefers a place cancels
itself out at one half. Component: agreement, the share of judges whose two verdicts say the same.
"""

from __future__ import annotations

from msgspec import Struct

from temper.verifiers import judging
from temper.verifiers.grading import Given, Judgement, Plugin, Text

Config = judging.Config
_ASK = "Two answers to one request, {}: which is better? Length and style count only where the item says so."
_CHOICES = ("first", "second", "equal")


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    answer: Text
    criteria: Text


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    if not given.answer.strip():
        return Judgement(0.0, "the answer is empty")
    shown = judging.texts(given.task.messages, given.answer)
    pair = (("answer", shown["answer"]), ("answer", reference.answer))
    questions = [
        judging.Question(
            (("request", shown["request"]), *order), {"better": reference.criteria}, _CHOICES, _ASK.format(n)
        )
        for n, order in (("in one order", pair), ("in the other order", pair[::-1]))
    ]
    votes = await judging.verdicts(given.state, questions, settings)
    fine = [(one["better"] != "second", other["better"] != "first") for one, other in votes]
    score = sum(map(sum, fine)) / (2 * len(fine))
    agreement = sum(a == b for a, b in fine) / len(fine)
    why = "" if score == 1 else f"{score:.0%} of the comparisons found it at least as good as the reference answer"
    return Judgement(score, why, {"agreement": agreement})


create = Plugin(__name__, Config, Reference, judge, prepare=judging.panel)
