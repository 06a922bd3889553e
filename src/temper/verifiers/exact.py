"""The whole answer equals the reference, or one of several. Nothing is searched for inside the answer.

Reference: {"answer": "Paris"} or {"answer": ["Paris", "Paris, France"]} (any of).
"""

from __future__ import annotations

import unicodedata

from msgspec import Struct

from temper.core.blame import FaultError
from temper.verifiers.grading import Given, Judgement, Plugin


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    strip: bool = True  # white space around the answer does not count
    casefold: bool = True  # nor do capitals


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    answer: str | list[str]

    @property
    def golds(self) -> list[str]:
        return [self.answer] if isinstance(self.answer, str) else self.answer


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    golds = reference.golds
    if not golds or not all(normal(gold, settings) for gold in golds):
        raise FaultError("reference-missing", "verifiers.exact", "an empty answer would pass by saying nothing")
    longest = max(len(gold) for gold in golds)
    answer = given.trace.answer if len(given.trace.answer) < 4 * longest + 1000 else ""  # folding it takes long
    right = normal(answer, settings) in {normal(gold, settings) for gold in golds}
    return Judgement(float(right), "" if right else f"{answer[:80]!r} is not the expected answer")


def normal(text: str, config: Config) -> str:
    text = unicodedata.normalize("NFC", text)
    text = text.strip() if config.strip else text
    return text.casefold() if config.casefold else text


create = Plugin(__name__, Config, Reference, judge)
