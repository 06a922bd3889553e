"""Constraints on form: each met and missed once, after the descriptions in IFEval (arXiv 2311.07911, table 4)."""

# ruff: noqa: E501  (tables with one entry a line)

from __future__ import annotations

import pytest

from temper.verifiers import instructions
from temper.verifiers.instructions import CONSTRAINTS, check

# id, arguments, an answer that meets it, one that does not
CASES = [
    ("keywords:existence", {"keywords": ["sun", "sea"]}, "The Sea and the sun", "The sea and the moon"),
    ("keywords:frequency", {"keyword": "sea", "frequency": 2, "relation": "at least"}, "sea, Sea", "sea"),
    ("keywords:frequency", {"keyword": "sea", "frequency": 2, "relation": "less than"}, "sea", "sea sea"),
    ("keywords:forbidden_words", {"forbidden_words": ["sea"]}, "seaside", "the sea"),
    ("keywords:forbidden_words", {"forbidden_words": ["C++"]}, "in C", "in C++ or C"),
    ("keywords:letter_frequency", {"letter": "Z", "let_frequency": 2, "let_relation": "at least"}, "zoo zen", "zoo"),
    ("length_constraints:number_words", {"num_words": 4, "relation": "at least"}, "one two three four", "one two three"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "It rains. Stay in!", "It is 3.5 m."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "one\n***\ntwo", "one\n***\n\n***\ntwo"),
    ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"}, "a\n\n\"So it is", "a\n\nIt is so"),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] of [town]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye\nP.S. write", "Bye, PS"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye. **P.S.** write", "Bye. HP.S. write"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "<p>P.P.S. write</p>", "Bye\nP.P.S"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a\n* b\n* c"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "a\n- [name]", "a\n---\nb"),
    ("detectable_format:constrained_response", {}, "My answer is no.", "No."),
    ("detectable_format:constrained_response", {}, "My answer is no. I checked.", "My answer is no. My answer is yes."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*a* and **b c**", "*a* and ** **"),
    ("detectable_format:multiple_sections", {"section_spliter": "Section", "num_sections": 2}, "Section 1\nx\nSection 2\ny", "Section 1\nx"),
    ("detectable_format:multiple_sections", {"section_spliter": "PART", "num_sections": 2}, "**PART 1**\n\"PART 2\"", "RAMPART 1\nPART 2"),
    ("detectable_format:json_format", {}, "```json\n{\"a\": 1}\n```", "{a: 1}"),
    ("detectable_format:title", {}, "<<a poem>>\nx", "<< >>\nx"),
    ("combination:two_responses", {}, "a\n******\nb", "a\n******\na"),
    ("combination:two_responses", {}, "******\na\n******\nb\n******", "a\n******\n\n******\nb"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it."}, "say it. It.", "It."),
    ("startend:end_checker", {"end_phrase": "Any questions?"}, "Yes. any questions?", "Any questions? Yes."),
    ("startend:quotation", {}, "\"all of it\"", "\"half\" of it"),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}, "GO NOW please", "GO now"),
    ("change_case:english_capital", {}, "GO NOW 1", "Go NOW"),
    ("change_case:english_lowercase", {}, "go now 1", "go Now"),
    ("punctuation:no_comma", {}, "a; b", "a, b"),
]  # fmt: skip


@pytest.mark.parametrize(("id", "given", "met", "missed"), CASES)
def test_a_constraint(id, given, met, missed):
    constraint = {"constraints": [{"id": id, **given}]}
    assert check(met, constraint)[0]
    for answer in (missed, "", " \n"):
        right, why, _ = check(answer, constraint)
        assert not right
        assert id in why


def test_every_constraint_has_its_case():
    assert {id for id, *_ in CASES} == set(CONSTRAINTS)


def test_all_are_needed_and_each_is_a_component(judged, pool):
    reference = {
        "constraints": [{"id": "punctuation:no_comma"}, {"id": "keywords:existence", "keywords": ["sea"]}],
        "example": "the sea",
    }
    verdict = judged(instructions.create(None, pool), reference, "a sea, a sun")
    assert (verdict.score, verdict.components["share"]) == (0, 0.5)
    assert verdict.components["1.keywords:existence"] == 1
    assert "punctuation:no_comma" in verdict.evidence[0].text


@pytest.mark.parametrize(
    "constraints",
    [
        [],
        [{"id": "language:response_language", "language": "fr"}],
        [{"id": "punctuation:no_comma", "most": 3}],
        [{"id": "length_constraints:number_words", "num_words": 3, "relation": "about"}],
        [{"id": "keywords:existence", "keywords": ["moon"]}],  # its own example does not meet it
    ],
)
def test_constraints_that_cannot_be_checked_are_the_tasks_fault(judged, pool, constraints):
    verdict = judged(instructions.create(None, pool), {"constraints": constraints, "example": "the sea is"}, "the sea")
    assert (verdict.why, verdict.masked) == ("reference-missing", True)
