"""Facts from a document (finance, legal, health, any long text), each with a verbatim quote.

Reference: {"document": text, "fields": {name: {"kind": ..., "facts": [...]}}}. A field without facts is one that the
document does not state; its right answer is null. A fact is {"value", "also": other accepted forms, "evidence"}: spans
of the document, all of which have to be quoted, each as a list of alternatives. Kinds are those of `checks.facts`, and
"clause", for which only the span counts. The document that the model sees is the reference's, to the letter. The answer
is one JSON object with every field that was asked for:

    {"term": {"value": "30 days", "quote": "for a term of thirty (30) days"}, "fee": null}

A statement is {"value", "quote"}, a list of them for a field with several facts, or null for what the document does not
state; a quote is a text, {"text", "at": offset}, or a list of these. A statement is right when its value is a fact's,
its quotes stand in the document as they are, they cover the fact's evidence by half or more (characters shared over
characters in either), and they alone state the value: an answer that would survive without its evidence is unfounded.

Right is every fact and nothing else. Components: f1 by field, values (right, whatever the evidence), unfounded (number
of statements that the document does not bear out).

`without_evidence` makes the control: the same document without a field's evidence, where the same answer is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from temper.core.task import Task
from temper.verifiers import written
from temper.verifiers.checks import facts
from temper.verifiers.checks.forms import FormError, Found, read_json

Config = written.Config
_OVERLAP = 0.5  # as in CUAD

Span = tuple[int, int]  # character offsets [start, end)


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


def check(text: str, reference: dict[str, Any]) -> Found:
    """Runs in a worker; `reference` as plain data."""
    document, fields = reference["document"], reference["fields"]
    try:
        answer = read_json(text)
        statements = {name: _statements(answer, name) for name in fields}
    except FormError as error:
        return Found(False, str(error), {"f1": 0.0})
    hits = wanted = said = unfounded = values = 0
    why = ""
    for name, field in fields.items():
        left = list(field["facts"])
        wanted, said = wanted + len(left), said + len(statements[name])
        for value, quotes in statements[name]:
            fact, problem, founded = _match(document, field["kind"], left, value, quotes)
            values += any(_valued(field["kind"], one, value) for one in left)
            if fact is not None:
                hits += 1
                left.remove(fact)
            unfounded += not founded
            why = why or (problem and f"{name}: {problem}")
        if left and not why:
            why = f"{name}: {len(left)} of what the document states is missing"
    extra = sorted(set(answer) - set(fields))
    if extra:
        unfounded, said = unfounded + len(extra), said + len(extra)
        why = why or f"{extra[0]!r} was not asked for"
    f1 = 2 * hits / (wanted + said) if wanted + said else 1.0
    found = {"f1": f1, "values": values / wanted if wanted else 1.0, "unfounded": float(unfounded)}
    return Found(hits == wanted == said, why, found)


def _match(
    document: str, kind: str, left: list[dict[str, Any]], value: Any, quotes: Sequence[tuple[str, int | None]]
) -> tuple[dict[str, Any] | None, str, bool]:
    """(the fact that a statement is, why it is none, whether the document bears it out at all)."""
    spans = [locate(document, quote, at) for quote, at in quotes]
    if not quotes or any(span is None for span in spans):
        return None, "the quote does not stand in the document like that, at that place or only once", False
    quoted = " ".join(quote for quote, _ in quotes)
    if kind != "clause" and not facts.states(kind, str(value), quoted):
        return None, f"the quote does not state {str(value)[:80]!r}", False
    if not left:
        return None, "the document does not state it, or it was given before", False
    valued = [fact for fact in left if _valued(kind, fact, value)]
    if not valued:
        return None, f"{str(value)[:80]!r} is not the value", True
    for fact in valued:
        covered = [max(overlap(span, tuple(one)) for one in any_ for span in spans) for any_ in fact["evidence"]]
        if min(covered) >= _OVERLAP and len(quotes) <= 2 * len(covered):
            return fact, "", True
    return None, "what is quoted is not the evidence for it", True


def _valued(kind: str, fact: dict[str, Any], value: Any) -> bool:
    return kind == "clause" or any(facts.same(kind, gold, value) for gold in (fact["value"], *fact["also"]))


def _statements(answer: Any, name: str) -> list[tuple[Any, list[tuple[str, int | None]]]]:
    """(value, quotes) of each statement on a field. Raises FormError."""
    if not isinstance(answer, dict) or name not in answer:
        raise FormError(f"expected an object with the key {name!r}; null where the document does not state it")
    given = answer[name]
    listed = [] if given is None else given if isinstance(given, list) else [given]
    if len(listed) > 50:
        raise FormError(f"{name}: too many statements")
    if not all(isinstance(one, dict) and {"quote"} <= set(one) <= {"value", "quote"} for one in listed):
        raise FormError(f'{name}: expected {{"value": ..., "quote": ...}}')
    return [(one.get("value"), _quotes(one["quote"])) for one in listed]


def _quotes(given: Any) -> list[tuple[str, int | None]]:
    quotes = []
    for one in given if isinstance(given, list) else [given]:
        match one:
            case str():
                quotes.append((one, None))
            case {"text": str() as text, "at": int() as at} if len(one) == 2:
                quotes.append((text, at))
            case _:
                raise FormError('expected a quote as a text or as {"text": ..., "at": offset}')
    return quotes


def locate(document: str, quote: str, at: int | None = None) -> Span | None:
    """Where the quote stands, verbatim: at the offset that it cites or, without one, where it stands exactly once."""
    if not quote.strip():
        return None
    if at is None:
        at = document.find(quote)
        if at < 0 or document.find(quote, at + 1) >= 0:
            return None
    return (at, at + len(quote)) if at >= 0 and document.startswith(quote, at) else None


def overlap(a: Span, b: Span) -> float:
    """Characters that two spans share, over those that either has."""
    shared = min(a[1], b[1]) - max(a[0], b[0])
    return shared / (max(a[1], b[1]) - min(a[0], b[0])) if shared > 0 else 0.0


def without(document: str, spans: Sequence[Span]) -> str:
    """The document with these spans cut out."""
    kept, at = [], 0
    for start, end in sorted(spans):
        kept.append(document[at : max(at, start)])
        at = max(at, end)
    return "".join([*kept, document[at:]])


def moved(span: Span, cut: Sequence[Span]) -> Span | None:
    """Where a span of the document is in `without(document, cut)`; None when any of it was cut out."""
    if any(start < span[1] and span[0] < end for start, end in cut):
        return None
    shift = last = 0
    for start, end in sorted(cut):
        if end <= span[0]:
            shift += max(0, end - max(start, last))
            last = max(last, end)
    return span[0] - shift, span[1] - shift


create = written.checked(__name__, Config, Reference, gold, _problem)
