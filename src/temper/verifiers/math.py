"""The final answer of a calculation: exact rational arithmetic first, then expressions by value (`checks`).

Reference: {"answer": "3/4"}. LaTeX or plain; several answers as "1, 2" or "\\{1, 2\\}" (all of them, any order),
tuples and intervals with their brackets, numbers with their units. How the answer is found in the text, and which
readings it may have, is in `checks.answers`.
"""

from __future__ import annotations

from msgspec import Struct

from temper.verifiers.grading import Given, Judgement, Plugin, Text

_TAIL = 16 << 10  # characters of an answer's end that are looked at


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 3.0  # limit of one comparison


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    answer: Text


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    gold, exact, symbolic = reference.answer, "temper.verifiers.checks.answers", "temper.verifiers.checks.symbolic"
    text, boxed = given.answer[-_TAIL:], f"\\boxed{{{gold}}}"
    kind, answer = await given.pool.judge(
        f"{exact}:check", (text, gold), (boxed, gold), lambda f: f[0] in ("right", "unsure"), settings.seconds
    )
    right = kind == "right"
    if kind == "unsure":
        right = await given.pool.judge(f"{symbolic}:check", (answer, gold), (gold, gold), bool, settings.seconds)
    why = f"read the answer as {answer[:80]!r}, which is not right" if answer else "found no final answer"
    return Judgement(float(right), "" if right else why)


_LIBRARIES = ("math-verify", "latex2sympy2_extended", "sympy")
create = Plugin(__name__, Config, Reference, judge, libraries=lambda _: _LIBRARIES)
