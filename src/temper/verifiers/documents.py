"""Facts from a document (finance, legal, health, any long text), each with a verbatim quote (`checks.documents`).

Reference: {"document": text, "fields": {name: {"kind": ..., "facts": [...]}}}. A field without facts is one that the
document does not state; its right answer is null. A fact is {"value", "also": other accepted forms, "evidence"}: spans
of the document, all of which have to be quoted, each as a list of alternatives. Kinds are those of `checks.facts`, and
"clause", for which only the span counts. The document that the model sees is the reference's, to the letter.

Right is every fact and nothing else. Components: f1 by field, values (right, whatever the evidence), unfounded (number
of statements that the document does not bear out).

`without_evidence` makes the control: the same document without a field's evidence, where the same answer is wrong.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct, structs

from temper.core.task import Task
from temper.verifiers import written
from temper.verifiers.checks import facts
from temper.verifiers.checks.quotes import Span, moved, without

Config = written.Config


class Fact(Struct, frozen=True, forbid_unknown_fields=True):
    evidence: list[list[Span]]  # all of, each any of
    value: str = ""
    also: list[str] = []


class Field(Struct, frozen=True, forbid_unknown_fields=True):
    kind: Literal["text", "number", "amount", "date", "label", "clause"]
    facts: list[Fact] = []


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    document: str
    fields: dict[str, Field]


def gold(reference: Reference) -> str:
    """The right answer: every fact with its first evidence, quoted at its offset."""

    def said(fact: Fact) -> dict[str, object]:
        spans = [any_[0] for any_ in fact.evidence]
        quotes = [{"text": reference.document[start:end], "at": start} for start, end in spans]
        value = {"value": fact.value} if fact.value else {}
        return {**value, "quote": quotes[0] if len(quotes) == 1 else quotes}

    answer = {}
    for name, field in reference.fields.items():
        found = [said(fact) for fact in field.facts]
        answer[name] = found[0] if len(found) == 1 else found or None
    return msgspec.json.encode(answer).decode()


def without_evidence(reference: Reference, name: str) -> Reference:
    """The control: all evidence of a field is cut out, the field is no longer stated, other spans move along."""
    cut = [span for fact in reference.fields[name].facts for any_ in fact.evidence for span in any_]

    def kept(field: Field) -> Field:
        facts = []
        for fact in field.facts:
            spans = [[new for span in any_ if (new := moved(span, cut))] for any_ in fact.evidence]
            facts += [structs.replace(fact, evidence=spans)] if all(spans) else []
        return structs.replace(field, facts=facts)

    fields = {other: kept(field) for other, field in reference.fields.items()}
    return Reference(without(reference.document, cut), fields)


def _problem(reference: Reference, task: Task) -> str:
    if not reference.fields:
        return "no fields"
    for name, field in reference.fields.items():
        for fact in field.facts:
            if not fact.evidence or not all(fact.evidence):
                return f"field {name!r} has a fact without evidence"
            if any(not 0 <= start < end <= len(reference.document) for any_ in fact.evidence for start, end in any_):
                return f"field {name!r} has evidence outside the document"
            quoted = " ".join(reference.document[slice(*any_[0])] for any_ in fact.evidence)
            if field.kind != "clause" and not (fact.value.strip() and facts.states(field.kind, fact.value, quoted)):
                return f"field {name!r} has a value that its own evidence does not state"
    return ""


create = written.checked(__name__, Config, Reference, gold, _problem, check="temper.verifiers.checks.documents:check")
