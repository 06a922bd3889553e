"""Facts drawn from a document, each with its evidence: F1 by field, quotes, and what nothing supports.

The answer is one JSON object with every field that was asked for:

    {"term": {"value": "30 days", "quote": "for a term of thirty (30) days"}, "fee": null}

A statement is {"value", "quote"}, a list of them for a field with several facts, or null for what the document does not
state; a quote is a text, {"text", "at": offset}, or a list of these. A statement is right when its value is a fact's,
its quotes stand in the document as they are, they cover the fact's evidence by half or more (characters shared over
characters in either), and they alone state the value: an answer that would survive without its evidence is unfounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temper.verifiers.checks import facts
from temper.verifiers.checks.forms import FormError, Found, read_json
from temper.verifiers.checks.quotes import locate, overlap

_OVERLAP = 0.5  # as in CUAD


def check(text: str, reference: dict[str, Any]) -> Found:
    """`reference`: as `verifiers.documents.Reference`."""
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
    return [(one.get("value"), _quotes(one["quote"])) for one in listed if _formed(name, one)]


def _formed(name: str, statement: Any) -> bool:
    if not isinstance(statement, dict) or not {"quote"} <= set(statement) <= {"value", "quote"}:
        raise FormError(f'{name}: expected {{"value": ..., "quote": ...}}')
    return True


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
