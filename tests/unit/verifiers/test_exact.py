"""Exact answers: normalised, and never found inside a longer one."""

from __future__ import annotations

import pytest

from temper.verifiers import exact


@pytest.mark.parametrize(
    ("reference", "answer", "right"),
    [
        ("Paris", " paris\n", True),
        (["Paris", "City of Light"], "city of light", True),
        ("Paris", "It is Paris", False),
        ("Paris", "Pa\u200bris", False),  # zero width
        ("caf\u00e9", "cafe\u0301", True),  # one text, composed and decomposed
        ("CORRECT", "INCORRECT", False),  # taosmd#176: a substring of its opposite
        ("1.00", "1", False),
    ],
)
def test_answers(judged, reference, answer, right):
    assert judged(exact.create(), {"answer": reference}, answer).score == right


def test_capitals_and_space_count_when_the_settings_say_so(judged):
    verifier = exact.create(exact.Config(strip=False, casefold=False))
    assert judged(verifier, {"answer": "Ab"}, "Ab").score == 1
    assert judged(verifier, {"answer": "Ab"}, "ab").score == 0
    assert judged(verifier, {"answer": "Ab"}, "Ab ").score == 0
    assert verifier.hash != exact.create().hash


@pytest.mark.parametrize("empty", ["", "  ", [], ["Paris", ""]])
def test_an_empty_reference_is_no_free_pass(judged, empty):
    """legalbench: an empty reference paid everybody."""
    assert judged(exact.create(), {"answer": empty}, "").why == "reference-missing"
