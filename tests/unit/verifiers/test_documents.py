"""Facts with their evidence: values, quotes, offsets, and what the document does not state."""

from __future__ import annotations

import json

import msgspec
import pytest

from temper.verifiers import documents
from temper.verifiers.checks import facts
from temper.verifiers.documents import locate, moved, overlap, without

DOCUMENT = (
    "This Agreement runs for a term of thirty (30) days. The fee is $100. The laws of Ohio govern it. "
    "The Client may inspect the records. Ann was born in York. Ann built the mill."
)


def span(text: str) -> list[int]:
    start = DOCUMENT.index(text)
    return [start, start + len(text)]


def fact(value: str, *sentences: str) -> dict:
    return {"value": value, "evidence": [[span(sentence)] for sentence in sentences]}


FIELDS = {
    "term": {"kind": "amount", "facts": [fact("30 days", "This Agreement runs for a term of thirty (30) days.")]},
    "fee": {"kind": "amount", "facts": [fact("$100", "The fee is $100.")]},
    "law": {"kind": "text", "facts": [fact("Ohio", "The laws of Ohio govern it.")]},
    "audit": {"kind": "clause", "facts": [fact("", "The Client may inspect the records.")]},
    "town": {"kind": "text", "facts": [fact("York", "Ann built the mill.", "Ann was born in York.")]},
    "deposit": {"kind": "amount"},
}
REFERENCE = {"document": DOCUMENT, "fields": FIELDS}
GOLD = json.loads(documents.gold(msgspec.convert(REFERENCE, documents.Reference)))


def test_the_gold_answer_is_right_with_and_without_offsets(judged, pool):
    plain = {**GOLD, "law": {"value": "Ohio", "quote": "The laws of Ohio govern it."}}
    for answer in (GOLD, plain):
        verdict = judged(documents.create(None, pool), REFERENCE, json.dumps(answer))
        assert (verdict.score, verdict.components) == (1, {"f1": 1, "values": 1, "unfounded": 0})


FEE = GOLD["fee"]["quote"]
WRONG = {
    "another value": ({"fee": {"value": "$1.00", "quote": FEE}}, "does not state"),
    "a value of another sentence": ({"fee": {"value": "30 days", "quote": GOLD["term"]["quote"]}}, "not the value"),
    "without unit": ({"fee": {"value": 100, "quote": FEE}}, "does not state"),
    "quote altered": ({"fee": {"value": "$100", "quote": "The fee was $100."}}, "does not stand"),
    "offset moved": ({"fee": {"value": "$100", "quote": {**FEE, "at": FEE["at"] + 1}}}, "does not stand"),
    "quote of everything": ({"fee": {"value": "$100", "quote": DOCUMENT}}, "not the evidence"),
    "an empty quote": ({"fee": {"value": "$100", "quote": ""}}, "does not stand"),
    "half of the evidence": ({"town": {"value": "York", "quote": ["Ann was born in York."]}}, "not the evidence"),
    "another clause": ({"audit": {"quote": "The laws of Ohio govern it."}}, "not the evidence"),
    "left out": ({"law": None}, "missing"),
    "invented": ({"deposit": {"value": "$100", "quote": FEE}}, "does not state it"),
    "said twice": ({"law": [GOLD["law"], GOLD["law"]]}, "given before"),
}


@pytest.mark.parametrize("case", WRONG)
def test_one_mistake_is_enough(judged, pool, case):
    change, why = WRONG[case]
    verdict = judged(documents.create(None, pool), REFERENCE, json.dumps({**GOLD, **change}))
    assert (verdict.status, verdict.score) == ("graded", 0)
    assert 0.5 < verdict.components["f1"] < 1
    assert why in verdict.evidence[0].text


def test_f1_by_hand(judged, pool):
    """Five facts: two are given rightly, one wrongly, two are left out; so 2 * 2 / (5 + 3)."""
    answer = {**dict.fromkeys(GOLD), "term": GOLD["term"], "fee": GOLD["fee"], "law": {"value": "Utah", "quote": FEE}}
    verdict = judged(documents.create(None, pool), REFERENCE, json.dumps(answer))
    assert verdict.components == {"f1": 0.5, "values": 0.4, "unfounded": 1}


@pytest.mark.parametrize("name", [name for name, field in FIELDS.items() if field.get("facts")])
def test_an_answer_does_not_survive_without_its_evidence(judged, pool, name):
    reference = msgspec.convert(REFERENCE, documents.Reference)
    control = documents.without_evidence(reference, name)
    right = documents.gold(control)
    verifier = documents.create(None, pool)
    assert json.loads(right)[name] is None
    assert judged(verifier, msgspec.to_builtins(control), right).score == 1
    kept = {**json.loads(right), name: {k: v for k, v in GOLD[name].items() if k == "value"} | {"quote": "Ann"}}
    for answer in (documents.gold(reference), json.dumps(kept)):
        assert judged(verifier, msgspec.to_builtins(control), answer).score == 0


@pytest.mark.parametrize(
    "change",
    [
        {"fields": {}},
        {"fields": {"fee": {"kind": "amount", "facts": [{"value": "", "evidence": [[[0, 5]]]}]}}},  # legalbench#56
        {"fields": {"fee": {"kind": "amount", "facts": [{"value": "$100", "evidence": []}]}}},
        {"fields": {"fee": {"kind": "amount", "facts": [{"value": "$100", "evidence": [[[0, 10]]]}]}}},
        {"fields": {"fee": {"kind": "amount", "facts": [{"value": "$100", "evidence": [[[0, 9999]]]}]}}},
    ],
)
def test_an_empty_or_unfounded_reference_passes_nobody(judged, pool, change):
    verdict = judged(documents.create(None, pool), {**REFERENCE, **change}, json.dumps({}))
    assert (verdict.why, verdict.masked) == ("reference-missing", True)


SAME = [
    ("amount", "$100", "$100.00", True),  # legalbench#56 scores this 0 ...
    ("amount", "$100", "$1.00", False),  # ... and this 1
    ("amount", "$100", "100 dollars", True),
    ("amount", "$100", "100", False),
    ("amount", "$1,500,000", "$1.5 million", True),
    ("amount", "$1,500,000", "$1,5 million", False),
    ("amount", "30 days", "thirty (30) days", True),
    ("amount", "30 days", "30", False),
    ("amount", "30 days", "30 hours", False),
    ("amount", "24 months", "2 years", True),
    ("amount", "3 tablets", "3 bottles", False),
    ("amount", "0.5 g", "500 mg", True),
    ("amount", "12%", "12 percent", True),
    ("amount", "$100", "$100 or $200", False),
    ("number", "-12", "(12)", True),
    ("number", "1234.5", 1234.5, True),
    ("number", "1", True, False),
    ("number", "42", "٤٢", False),
    ("date", "March 3, 2024", "2024-03-03", True),
    ("date", "March 3, 2024", "3rd day of March, 2024", True),
    ("date", "March 3, 2024", "03/04/2024", False),
    ("text", "Ohio", " ohio. ", True),
    ("text", "Ohio", "Ohio or Utah", False),
]


@pytest.mark.parametrize(("kind", "gold", "given", "equal"), SAME)
def test_when_two_values_are_the_same(kind, gold, given, equal):
    assert facts.same(kind, gold, given) == equal


def test_a_value_stands_in_a_text_as_a_whole():
    assert facts.states("text", "Ohio", "the laws of Ohio govern")
    assert not facts.states("text", "Ohio", "the Ohioan laws")
    assert facts.states("amount", "30 days", "on thirty (30) days' notice")
    assert not facts.states("amount", "30 days", "on 130 days' notice, 30 hours")
    assert not facts.states("number", "5", "FY5, 5,000 and 5.5")


def test_quotes_and_spans():
    text = "to be or not to be"
    assert locate(text, "not") == (9, 12)
    assert locate(text, "to be") is None  # it stands there twice
    assert locate(text, "to be", 13) == (13, 18)
    assert locate(text, "to be", 12) is None
    assert locate(text, "To be", 0) is None
    assert overlap((0, 10), (5, 15)) == pytest.approx(1 / 3)
    assert overlap((0, 5), (5, 9)) == 0
    assert without(text, [(9, 13), (0, 6)]) == "or to be"
    assert moved((13, 18), [(9, 13), (0, 6)]) == (3, 8)
    assert moved((7, 10), [(9, 13)]) is None
