"""Instruction following: every constraint on the answer's form is met, under IFEval's names (arXiv 2311.07911).

Reference: {"constraints": [{"id": "length_constraints:number_words", "num_words": 50, "relation": "at least"}, ...],
"example": an answer that meets them}. Components: one a constraint, and `share`. Whether the answer is any good is
another verifier's question: combine them.

An empty answer meets none. Sentences end at `.`, `!` or `?` before a space; words are runs of letters and digits. The
language of an answer is not checked, since that takes a statistical detector, whose errors would be ours.
"""

# ruff: noqa: E501  (a table with one entry a line)

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.task import Task
from temper.verifiers import written
from temper.verifiers.grading import Some

Config = written.Config


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    constraints: Some[dict[str, Any]]
    example: str


Constraint = Callable[..., bool]


def check(text: str, reference: dict[str, Any]) -> tuple[bool, str, dict[str, float]]:
    """Runs in a worker: all are met, why not, 1.0 or 0.0 by constraint. Raises KeyError or TypeError for an unknown one."""
    met: dict[str, float] = {}
    missed = []
    for n, constraint in enumerate(reference["constraints"]):
        given = dict(constraint)
        id = given.pop("id")
        kept = bool(text.strip()) and CONSTRAINTS[id](text, **given)
        met[f"{n}.{id}"] = float(kept)
        if not kept:
            missed.append(f"{id} {json.dumps(given)}" if given else id)
    met["share"] = sum(met.values()) / len(met)
    return not missed, f"not met: {'; '.join(missed)}"[:500] if missed else "", met


def _holds(count: int, relation: str, number: int) -> bool:
    if relation not in ("at least", "less than"):
        raise TypeError(f"expected the relation 'at least' or 'less than', got {relation!r}")
    return count >= number if relation == "at least" else count < number


def _count(pattern: str, text: str, flags: int = re.I) -> int:
    return len(re.findall(pattern, text, flags))


def _paragraphs(text: str, num_paragraphs: int) -> bool:
    parts = [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]
    return all(parts[1:-1]) and sum(map(bool, parts)) == num_paragraphs


def _first_word(text: str, num_paragraphs: int, nth_paragraph: int, first_word: str) -> bool:
    parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    if len(parts) != num_paragraphs or not 0 < nth_paragraph <= len(parts):
        return False
    found = re.match(r"\W*(\w+)", parts[nth_paragraph - 1])
    return found is not None and found[1].casefold() == first_word.casefold()


def _json(text: str) -> bool:
    fenced = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", text.strip(), re.S | re.I)
    try:
        json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return False
    return True


def _postscript(text: str, postscript_marker: str) -> bool:
    marker = r"\s?".join(map(re.escape, postscript_marker.lower()))
    return re.search(rf"(?<!\w){marker}\s*\S", text.lower()) is not None


def _two_responses(text: str) -> bool:
    parts = [part.strip() for part in text.split("******")]
    first, *rest = parts[not parts[0] : len(parts) - (not parts[-1])] or [""]
    return len(rest) == 1 and all((first, *rest)) and first != rest[0]


CONSTRAINTS: dict[str, Constraint] = {
    "keywords:existence": lambda t, keywords: all(word.casefold() in t.casefold() for word in keywords),
    "keywords:frequency": lambda t, keyword, frequency, relation: _holds(_count(re.escape(keyword.strip()), t), relation, frequency),
    "keywords:forbidden_words": lambda t, forbidden_words: not any(_count(rf"(?<!\w){re.escape(w)}(?!\w)", t) for w in forbidden_words),
    "keywords:letter_frequency": lambda t, letter, let_frequency, let_relation: _holds(
        t.lower().count(letter.lower()), let_relation, let_frequency
    ),
    "length_constraints:number_words": lambda t, num_words, relation: _holds(_count(r"\w+", t), relation, num_words),
    "length_constraints:number_sentences": lambda t, num_sentences, relation: _holds(
        _count(r"[^.!?\s][^.!?]*(?:[.!?]+(?=\s|$)|$)", t), relation, num_sentences
    ),
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:nth_paragraph_first_word": _first_word,
    "detectable_content:number_placeholders": lambda t, num_placeholders: _count(r"\[[^\[\]]+\]", t) >= num_placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": lambda t, num_bullets: _count(r"^\s*(?:\*[^*\n]|-[ \t]*[^-\s]).*$", t, re.M) == num_bullets,
    "detectable_format:constrained_response": lambda t: len(set(re.findall(r"My answer is (?:yes|no|maybe)\.", t))) == 1,
    "detectable_format:number_highlighted_sections": lambda t, num_highlights: _count(
        r"\*\*[^\n*]*[^\s*][^\n*]*\*\*|\*[^\n*]*[^\s*][^\n*]*\*", t
    )
    >= num_highlights,
    "detectable_format:multiple_sections": lambda t, section_spliter, num_sections: _count(
        rf"(?<!\w){re.escape(section_spliter)}\s?\d+", t, 0
    )
    >= num_sections,
    "detectable_format:json_format": _json,
    "detectable_format:title": lambda t: re.search(r"<<[^\n<>]*[^\s<>][^\n<>]*>>", t) is not None,
    "combination:two_responses": _two_responses,
    "combination:repeat_prompt": lambda t, prompt_to_repeat: t.strip().casefold().startswith(prompt_to_repeat.strip().casefold()),
    "startend:end_checker": lambda t, end_phrase: t.strip().strip('"').casefold().endswith(end_phrase.strip().casefold()),
    "startend:quotation": lambda t: len(t.strip()) > 2 and t.strip()[0] == t.strip()[-1] == '"',
    "change_case:capital_word_frequency": lambda t, capital_frequency, capital_relation: _holds(
        sum(word.isupper() for word in re.findall(r"\w+", t)), capital_relation, capital_frequency
    ),
    "change_case:english_capital": lambda t: t.isupper(),
    "change_case:english_lowercase": lambda t: t.islower(),
    "punctuation:no_comma": lambda t: "," not in t,
}  # fmt: skip


def _problem(reference: Reference, task: Task) -> str:
    """Its own example has to meet it."""
    try:
        right, why, _ = check(reference.example, msgspec.to_builtins(reference))
    except (KeyError, TypeError, AttributeError) as error:
        return f"a constraint is unknown, or has other arguments: {error}"
    return "" if right else f"the example does not meet the constraints: {why}"


create = written.checked(__name__, Config, Reference, lambda reference: reference.example, _problem)
