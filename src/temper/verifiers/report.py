"""A written report: sections, figures that reconcile with the sources, citations that resolve, one unit a number.

Reference: {"sections": [{"title": "Summary", "words": 20}], "sources": {"S1": text}, "figures": [{"name": "sales",
"value": "$1,350", "section": "Findings", "sources": ["S1"]}], "allowed": ["12.5%"], "example": a right report}. The
report is the delivered `report.md` where the task declares it, else the answer. What each part asks is in
`checks.report`; each is a component. Taste is not judged here: combine with `rubric`.
"""

from __future__ import annotations

from msgspec import Struct

from temper.core.protocols import SandboxBackend
from temper.verifiers import written
from temper.verifiers.checks.facts import amounts
from temper.verifiers.grading import Grader
from temper.verifiers.pool import Pool

Config = written.Config


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    words: int = 1  # at least, tables apart


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    value: str  # one amount, such as "$1,350" or "12.5%"
    section: str
    sources: list[str] = []  # any of them has to be cited where the figure is stated


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    sections: list[Section]
    example: str
    sources: dict[str, str] = {}
    figures: list[Figure] = []
    allowed: list[str] = []


def create(config: Config | None, pool: Pool, sandboxes: SandboxBackend | None = None) -> Grader:
    checks = ("report", "facts", "units")
    return written.checked(
        __name__, config, pool, Reference, lambda r: r.example, _problem, checks, file="report.md"
    )  # fmt: skip


def _problem(reference: Reference) -> str:
    if not reference.sections or not reference.example.strip():
        return "expected sections and an example of a right report"
    several = [figure.name for figure in reference.figures if len(list(amounts(figure.value))) != 1]
    return f"the value of figure {several[0]!r} has to be one amount" if several else ""
