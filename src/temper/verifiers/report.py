"""A written report: sections, figures that reconcile with the sources, citations that resolve, one unit a number.

Reference: {"sections": [{"title": "Summary", "words": 20}], "sources": {"S1": text}, "figures": [{"name": "sales",
"value": "$1,350", "section": "Findings", "sources": ["S1"]}], "allowed": ["12.5%"], "example": a right report}. The
report is the delivered `report.md` where the task declares it, else the answer. It is Markdown: `## Title` opens a
section, `[S1]` cites a source. It holds when

- sections: all stand there, in order, no others, each with enough words that are not a heading or a table
- figures: each required figure is stated in its section, by a sentence or table row that cites a source for it
- numbers: every number in it is one of the sources', a required figure, or one that the task allows; a table's row
  called total is the sum of the rows above it
- citations: each resolves, and where a cited sentence has numbers, the sources that it cites hold one of them
- units: no number that has a unit in the sources is given with another

Each is a component. Taste is not judged here: combine with `rubric`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

from msgspec import Struct

from temper.core.task import Task
from temper.verifiers import written
from temper.verifiers.checks.facts import Amount, amounts
from temper.verifiers.checks.forms import Found
from temper.verifiers.grading import Some, Text

Config = written.Config
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*\s*$", re.M)
_CITATION = re.compile(r"\[([A-Za-z][\w.-]{0,19})\](?!\()")
_SENTENCE = re.compile(r"(?<=[.!?])(?:\s*(?:\[[A-Za-z][\w.-]{0,19}\]\s*)+)?\s+(?=[A-Z\"“])|\n+")
_FALL = re.compile(r"\b(?:fell|fall|drop|declin|decreas|shrank|shrink|lower|less|down|lost|loss|reduc)\w*", re.I)
_HIDDEN = re.compile(r"<!--.*?(?:-->|\Z)", re.S)  # comments, which nobody sees
_RULE = re.compile(r"^[\s|:-]+$")

Part = tuple[str, str]  # a section's title and body


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    words: int = 1  # at least, tables apart


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    value: str  # one amount, such as "$1,350" or "12.5%"
    section: str
    sources: list[str] = []  # any of them has to be cited where the figure is stated


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    sections: Some[Section]
    example: Text
    sources: dict[str, str] = {}
    figures: list[Figure] = []
    allowed: list[str] = []


class Sentence(NamedTuple):
    """A sentence or a table row: the title of its section, its text without citations, what it cites and its numbers.

    `falls`: it speaks of a fall, so that its numbers may be meant as negative ones.
    """

    title: str
    text: str
    cites: frozenset[str]
    numbers: list[Amount]
    falls: bool


def check(text: str, reference: dict[str, Any]) -> Found:
    """Runs in a worker; `reference` as plain data."""
    sections = _read(_HIDDEN.sub(" ", text))
    sentences = [sentence for title, body in sections for sentence in _sentences(title, body)]
    given = {name: list(amounts(source)) for name, source in reference["sources"].items()}
    worked_out = [*(figure["value"] for figure in reference["figures"]), *reference["allowed"]]
    computed = [one for value in worked_out for one in amounts(value)]
    problems = {
        "sections": list(_wrong_sections(sections[1:], reference["sections"])),
        "figures": list(_wrong_figures(sentences, reference["figures"])),
        "numbers": [*_wrong_numbers(sentences, given, computed), *_wrong_totals(sections)],
        "citations": list(_wrong_citations(sentences, given, {one.value for one in computed})),
        "units": list(_wrong_units(sentences, [*(one for found in given.values() for one in found), *computed])),
    }
    why = next((found[0] for found in problems.values() if found), "")
    return Found(not why, why, {name: float(not found) for name, found in problems.items()})


def _read(text: str) -> list[Part]:
    """What stands before the first heading, under the title "", and the sections."""
    headings = list(_HEADING.finditer(text))
    starts = [heading.start() for heading in headings]
    bodies = [
        (found[1], text[found.end() : end]) for found, end in zip(headings, [*starts[1:], len(text)], strict=False)
    ]
    return [("", text[: starts[0]] if starts else text), *bodies]


def _sentences(title: str, body: str) -> Iterator[Sentence]:
    """A citation behind the full stop belongs to the sentence before it."""
    ends = [
        *((gap.start(), gap.end(), _CITATION.findall(gap[0])) for gap in _SENTENCE.finditer(body)),
        (len(body), 0, []),
    ]
    start = 0
    for end, next_, behind in ends:
        raw, start = body[start:end], next_
        if raw.strip() and not _RULE.match(raw):
            text = re.sub(r"^\s*(?:[-*]|\d+[.)])\s", "", _CITATION.sub(" ", raw))
            cites = frozenset([*_CITATION.findall(raw), *behind])
            yield Sentence(title, text, cites, list(amounts(text)), _FALL.search(text) is not None)


def _wrong_sections(sections: list[Part], wanted: list[dict[str, Any]]) -> Iterator[str]:
    titles, expected = [title for title, _ in sections], [section["title"] for section in wanted]
    if [title.casefold() for title in titles] != [title.casefold() for title in expected]:
        yield f"the sections are {titles[:12]}, expected {expected}"
        return
    for section, (title, body) in zip(wanted, sections, strict=True):
        prose = "\n".join(line for line in body.split("\n") if not line.lstrip().startswith("|"))
        words = len(re.findall(r"[^\W\d_]{2,}", _CITATION.sub("", prose)))
        if words < section["words"]:
            yield f"section {title!r} has {words} words, expected {section['words']} or more"


def _wrong_figures(sentences: list[Sentence], figures: list[dict[str, Any]]) -> Iterator[str]:
    for figure in figures:
        (wanted,) = amounts(figure["value"])
        inside = [sentence for sentence in sentences if sentence.title.casefold() == figure["section"].casefold()]
        stating = [sentence for sentence in inside if _states(sentence, wanted)]
        if not stating:
            yield f"section {figure['section']!r} does not state {figure['name']}"
        elif figure["sources"] and not any(sentence.cites & set(figure["sources"]) for sentence in stating):
            yield f"{figure['name']} is stated without a source for it"


def _states(sentence: Sentence, wanted: Amount) -> bool:
    """A fall by 4% is a change by -4%."""
    signs = (1, -1) if sentence.falls else (1,)
    return any(wanted[:2] == (sign * one.value, one.dimension) for one in sentence.numbers for sign in signs)


def _wrong_numbers(sentences: list[Sentence], given: dict[str, list[Amount]], computed: list[Amount]) -> Iterator[str]:
    known = {one.value for found in (*given.values(), computed) for one in found}
    for sentence in sentences:
        for one in sentence.numbers:
            if one.value not in known and not (sentence.falls and -one.value in known):
                yield f"{sentence.text[slice(*one.span)]} in section {sentence.title!r} is no number of the sources"


def _wrong_totals(sections: list[Part]) -> Iterator[str]:
    """Rows of tables that begin with total and whose numbers are not the sums of the rows between it and the rule."""
    for title, body in sections:
        above: list[list[Fraction | None]] = []
        for line in body.split("\n"):
            head, *cells = (cell.strip() for cell in line.strip().strip("|").split("|"))
            values = [next((one.value for one in amounts(cell)), None) for cell in cells]
            if head.strip("* ").casefold() in ("total", "sum") and above:
                sums = [sum(value or 0 for value in column) for column in zip(*above, strict=False)]
                if any(value not in (None, total) for value, total in zip(values, sums, strict=False)):
                    yield f"the total {line.strip()[:80]!r} in section {title!r} is not the sum of the rows above it"
            elif not line.lstrip().startswith("|") or _RULE.match(line):
                above = []
            else:
                above.append(values)


def _wrong_citations(
    sentences: list[Sentence], given: dict[str, list[Amount]], computed: set[Fraction]
) -> Iterator[str]:
    """A number that was worked out need not stand in the source, and may stand in another by chance."""
    for sentence in sentences:
        if unknown := sorted(sentence.cites - set(given)):
            yield f"[{unknown[0]}] is none of the sources: {', '.join(given)}"
            continue
        said = {one.value for one in sentence.numbers if not {one.value, -one.value} & computed}
        holding = {name for name, found in given.items() if said & {one.value for one in found}}
        if sentence.cites and holding and not sentence.cites & holding:
            yield f"{sentence.text.strip()[:80]!r} cites {sorted(sentence.cites)}, where its numbers do not stand"


def _wrong_units(sentences: list[Sentence], known: list[Amount]) -> Iterator[str]:
    units: dict[Fraction, set[Any]] = {}
    for one in known:
        units.setdefault(abs(one.value), set()).add(one.dimension)
    for sentence in sentences:
        for one in sentence.numbers:
            right = units.get(abs(one.value), {()})
            if one.dimension and one.dimension not in right and () not in right:
                yield f"{sentence.text[slice(*one.span)]!r} has another unit in the sources"


def _problem(reference: Reference, task: Task) -> str:
    several = [figure.name for figure in reference.figures if len(list(amounts(figure.value))) != 1]
    return f"the value of figure {several[0]!r} has to be one amount" if several else ""


create = written.checked(__name__, Config, Reference, lambda reference: reference.example, _problem, file="report.md")
