"""A chain of reasoning from what is given to a goal, each step checked by itself (`checks.derivation`).

Reference: {"given": ["2*x + 3 = 11"], "goal": "x = 4", "solution": the gold chain}, and where they occur, "integers"
and "propositions" by name. The answer is the chain, one step a line:

    1. 2*x + 3 = 11 [given]
    2. 2*x = 8 [from 1]
    3. x = 4 [from 2]

Right is a chain without a wrong, circular, unused or missing step whose last step says the goal. A step cites at most
`premises` others, so that a leap from everything to the goal is a gap. Components: valid (the share of steps before the
first bad one), goal, and the number of gaps, circular and unused steps. The evidence names the first bad step. Needs
the extra `temper-rl[derivation]` (z3).
"""

from __future__ import annotations

from msgspec import Struct

from temper.verifiers import written
from temper.verifiers.grading import Some, Text


class Config(written.Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 20.0


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    given: Some[str]
    goal: Text
    solution: Text
    integers: list[str] = []
    propositions: list[str] = []
    premises: int = 2


create = written.checked(
    __name__, Config, Reference, lambda reference: reference.solution, libraries=("z3-solver", "sympy"),
    extra="derivation", check="temper.verifiers.checks.derivation:check",
)  # fmt: skip
