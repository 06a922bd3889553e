"""The answer equals the reference; how far it is from it is the reward that training sees.

Reference: {"answer": "..."}, as for `exact`, but capitals count. The score, which is for people, is 1 or 0. The reward,
and the component `similarity`, is difflib's ratio, 2 * (characters in matching blocks) / (characters of both), which
public tasks such as reverse-text call the LCS ratio.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from functools import partial

from msgspec.structs import replace

from temper.verifiers import exact
from temper.verifiers.grading import Given, Judgement, Plugin


async def judge(given: Given, reference: exact.Reference, settings: exact.Config) -> Judgement:
    found = await exact.judge(given, reference, settings)
    near = max(closeness(given.trace.answer, gold, settings) for gold in reference.golds)
    return replace(found, components={"similarity": near}, reward=near)


def closeness(answer: str, gold: str, settings: exact.Config) -> float:
    """difflib's ratio of what was said to what was wanted; 0 for an answer so long that comparing it takes long."""
    if len(answer) > 4 * len(gold) + 100:
        return 0.0
    return SequenceMatcher(None, exact.normal(answer, settings), exact.normal(gold, settings)).ratio()


create = Plugin(__name__, partial(exact.Config, casefold=False), exact.Reference, judge)
