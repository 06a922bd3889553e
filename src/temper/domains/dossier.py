"""What families of documents share: a page that knows where its sentences stand, the question, and answers to it.

A family draws entries, each a sentence that states the value of a field, and sentences that state none. A field may be
asked for whose sentence is left out: then null is right, and the value that it would have had is not (the control).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from temper.core.task import Limits, Message, Task
from temper.domains.written import Answers
from temper.verifiers import documents

_FORM = (
    'Answer with one JSON object, each field as {"value": ..., "quote": ...} or, if the text does not state it, null. '
    "Quote the whole sentence as it stands."
)
_INVENTED = {
    "text": "none known",
    "amount": "30 days",
    "date": "2024-01-01",
    "number": "1",
    "label": "yes",
    "clause": "",
}
_CLAUSE_FORM = ' Fields marked * are clauses: {"quote": ...} alone.'


class Entry(Struct, frozen=True):
    """A sentence and the field whose value it states, "" for one that states nothing; `also`: other forms of it."""

    sentence: str
    name: str = ""
    kind: str = "text"
    value: str = ""
    also: tuple[str, ...] = ()


class Page(Struct):
    """Text that grows by sentences. `add` gives the span of the sentence, without the space or line end behind it."""

    text: str = ""

    def add(self, sentence: str, end: str = " ") -> documents.Span:
        start = len(self.text)
        self.text += sentence + end
        return start, start + len(sentence)


class Sheet(Struct):
    """A document in the making and the fields that are asked for. `missing` are entries that were left out of it."""

    title: str
    entries: list[Entry]
    missing: list[Entry] = field(default_factory=list)

    def reference(self, asked: Sequence[str]) -> dict[str, Any]:
        page, found = Page(), {}
        page.add(self.title, "\n")
        for n, entry in enumerate(self.entries):
            span = page.add(entry.sentence, "\n" if n % 4 == 3 else " ")
            if entry.name in asked:
                fact = documents.Fact([[span]], "" if entry.kind == "clause" else entry.value, list(entry.also))
                known = found.setdefault(entry.name, documents.Field(entry.kind, []))
                known.facts.append(fact)
        kinds = {entry.name: entry.kind for entry in self.missing}
        fields = {name: found.get(name) or documents.Field(kinds[name]) for name in asked}
        return msgspec.to_builtins(documents.Reference(page.text.strip(), fields))


def task(domain: str, reference: Mapping[str, Any], ask: str, tokens: int) -> Task:
    marked = [name + "*" * (f["kind"] == "clause") for name, f in reference["fields"].items()]
    form = _FORM + _CLAUSE_FORM * any(name.endswith("*") for name in marked)
    prompt = f"{reference['document']}\n\n{ask} Fields: {', '.join(marked)}. {form}"
    return Task(
        id="",
        domain=domain,
        messages=(Message("user", prompt),),
        limits=Limits(turns=1, tokens=tokens, turn_tokens=tokens),
        reference=reference,
    )


def gold(task: Task) -> str:
    return documents.gold(_reference(task))


def right(task: Task) -> Answers:
    answer = json.loads(gold(task))
    yield "indented", json.dumps(answer, indent=2)
    yield "fenced", f"```json\n{json.dumps(answer)}\n```"
    yield "fields in another order", json.dumps(dict(reversed(answer.items())))
    document = task.reference["document"]
    if all(document.count(quote["text"]) == 1 for _, statement in _stated(answer) for quote in _quotes(statement)):
        yield "without offsets", json.dumps(_each(answer, lambda s: {**s, "quote": [q["text"] for q in _quotes(s)]}))
    for name, known in task.reference["fields"].items():
        for form in known["facts"][0]["also"] if len(known["facts"]) == 1 else ():
            yield f"{name} as {form}", json.dumps({**answer, name: {**answer[name], "value": form}})


def wrong(task: Task) -> Answers:
    answer = json.loads(gold(task))
    document = task.reference["document"]
    for name, statement in _stated(answer):
        quotes = _quotes(statement)
        first = quotes[0]
        altered = first["text"][:3] + first["text"][4:]
        changes: dict[str, Any] = {
            "without quote": {"value": statement.get("value", "")},
            "null": None,
            "quote altered": {**statement, "quote": [{**first, "text": altered}, *quotes[1:]]},
            "offset moved": {**statement, "quote": [{**first, "at": first["at"] + 1}, *quotes[1:]]},
            "quotes everything": {**statement, "quote": {"text": document, "at": 0}},
            "said twice": [statement, statement],
        }
        if "value" in statement:
            changes["another value"] = {**statement, "value": _other(statement["value"])}
        if len(quotes) > 1:
            changes["half of the evidence"] = {**statement, "quote": quotes[1:]}
        for why, change in changes.items():
            kept = answer[name] if isinstance(answer[name], list) else [answer[name]]
            swapped = [change if one == statement else one for one in kept]
            yield f"{name}: {why}", json.dumps({**answer, name: swapped if len(kept) > 1 else change})
    for name, value in answer.items():
        if value is None:
            invented = {"value": _INVENTED[task.reference["fields"][name]["kind"]], "quote": document.split("\n")[1]}
            yield f"{name}: invented, the evidence was removed", json.dumps({**answer, name: invented})
    yield "a field too many", json.dumps({**answer, "note": {"value": "yes", "quote": document[:20]}})
    yield "a field too few", json.dumps(dict(list(answer.items())[1:]))
    yield "words around it", f"Here it is: {json.dumps(answer)}"


def second(task: Task, answer: str) -> bool | None:
    """Whole sentences quoted and values in a known form are right; fields of another number, or too few, are wrong."""
    try:
        said = json.loads(answer)
    except ValueError:
        return None if "```" in answer else False
    document, fields = task.reference["document"], task.reference["fields"]
    if not isinstance(said, dict) or said.keys() != fields.keys():
        return False
    for name, known in fields.items():
        given = said[name] if isinstance(said[name], list) else [said[name]] if said[name] else []
        if len(given) != len(known["facts"]):
            return False
        left = [*known["facts"]]
        for statement in given:
            fits = [fact for fact in left if statement in _plainly(document, known["kind"], fact)]
            if not fits:
                return None
            left.remove(fits[0])
    return True


def _plainly(document: str, kind: str, fact: Mapping[str, Any]) -> list[Any]:
    """Statements of a fact that are right without a second look."""
    spans = [any_[0] for any_ in fact["evidence"]]
    bare = [document[start:end] for start, end in spans]
    placed = [{"text": document[start:end], "at": start} for start, end in spans]
    quotes: list[Any] = [bare, placed, *([bare[0], placed[0]] if len(spans) == 1 else [])]
    values = [fact["value"], *fact["also"]] if kind != "clause" else []
    return [{"value": v, "quote": q} for v in values for q in quotes] or [{"quote": q} for q in quotes]


def _other(value: str) -> str:
    number = re.search(r"[0-9]+(?=[^0-9]*$)", value)
    return f"{value[: number.start()]}{int(number[0]) + 1}{value[number.end() :]}" if number else f"Not {value}"


def _reference(task: Task) -> documents.Reference:
    return msgspec.convert(task.reference, documents.Reference)


def _stated(answer: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, s) for name, said in answer.items() for s in (said if isinstance(said, list) else [said]) if s]


def _quotes(statement: Mapping[str, Any]) -> list[dict[str, Any]]:
    quotes = statement["quote"]
    return quotes if isinstance(quotes, list) else [quotes]


def _each(answer: Mapping[str, Any], change: Any) -> dict[str, Any]:
    return {
        name: [change(s) for s in said] if isinstance(said, list) else said and change(said)
        for name, said in answer.items()
    }
