"""Instruction following: every constraint on the answer's form is met (`checks.instructions`, IFEval's names).

Reference: {"constraints": [{"id": "length_constraints:number_words", "num_words": 50, "relation": "at least"}, ...],
"example": an answer that meets them}. Components: one a constraint, and `share`. Whether the answer is any good is
another verifier's question: combine them.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from temper.core.protocols import SandboxBackend
from temper.verifiers import written
from temper.verifiers.checks import instructions
from temper.verifiers.grading import Grader
from temper.verifiers.pool import Pool

Config = written.Config


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    constraints: list[dict[str, Any]]
    example: str


def create(config: Config | None, pool: Pool, sandboxes: SandboxBackend | None = None) -> Grader:
    return written.checked(__name__, config, pool, Reference, lambda r: r.example, _problem, ("instructions",))


def _problem(reference: Reference) -> str:
    """Why the reference is none, "" when it is sound: its own example has to meet it."""
    if not reference.constraints:
        return "no constraints"
    try:
        right, why, _ = instructions.check(reference.example, msgspec.to_builtins(reference))
    except (KeyError, TypeError, AttributeError) as error:
        return f"a constraint is unknown, or has other arguments: {error}"
    return "" if right else f"the example does not meet the constraints: {why}"
