"""Tool use by its end state and its calls: doing nothing, doing too much and doing it in the wrong order all fail."""

from __future__ import annotations

import json

import pytest

from temper.core.task import ToolSpec
from temper.verifiers import tools

STATE = {"balance": {"a": 70, "b": 30}, "log": ["moved"]}
LOOK = {"name": "look", "arguments": {"account": "a"}}
MOVE = {"name": "move", "arguments": {"to": "b", "amount": 30}}
REFERENCE = {"state": STATE, "calls": [LOOK, MOVE], "order": [[0, 1]], "answer": "done"}


@pytest.fixture
def grade(judged, pool):
    def run(state, calls, answer="Done", reference=REFERENCE):
        artifacts = {"state.json": json.dumps(state).encode(), "calls.json": json.dumps(calls).encode()}
        return judged(tools.create(None, pool), reference, answer, artifacts)

    return run


def test_the_expected_end_scores_with_other_calls_beside_it(grade):
    other = {"name": "look", "arguments": {"account": "b"}}
    verdict = grade(STATE, [other, LOOK, MOVE, other])
    assert verdict.score == 1
    assert verdict.components == {"state": 1.0, "arguments": 1.0, "order": 1.0, "answer": 1.0}


@pytest.mark.parametrize(
    ("state", "calls", "answer", "why"),
    [
        ({"balance": {"a": 100, "b": 0}, "log": []}, [], "done", "state.balance.a"),  # did nothing
        ({**STATE, "log": ["moved", "told"]}, [LOOK, MOVE], "done", "state.log.1"),  # collateral damage
        ({**STATE, "extra": None}, [LOOK, MOVE], "done", "state.extra"),
        (STATE, [MOVE, LOOK], "done", "wrong order"),
        (STATE, [LOOK, {**MOVE, "arguments": {"to": "b", "amount": True}}], "done", "move"),
        (STATE, [{**LOOK, "ok": False}, MOVE], "done", "look"),  # a failed call was not made
        (STATE, [LOOK, MOVE], "not done", "final answer"),
        ([], [LOOK, MOVE], "done", "state"),
        (STATE, {"name": "look"}, "done", "cannot be read"),
    ],
)
def test_what_fails_and_why(grade, state, calls, answer, why):
    verdict = grade(state, calls, answer)
    assert (verdict.status, verdict.score) == ("graded", 0.0)
    assert why in verdict.evidence[0].text


def test_components_tell_how_far_it_came(grade):
    verdict = grade({**STATE, "log": []}, [MOVE])
    assert verdict.components == {"state": pytest.approx(2 / 3), "arguments": 0.5, "order": 0.0, "answer": 1.0}


def test_a_call_that_is_wanted_twice_has_to_be_made_twice(grade):
    reference = {"state": STATE, "calls": [MOVE, LOOK, MOVE], "order": [[0, 1], [1, 2]]}
    assert grade(STATE, [MOVE, LOOK, MOVE], reference=reference).score == 1
    assert grade(STATE, [MOVE, MOVE, LOOK], reference=reference).score == 0
    assert grade(STATE, [MOVE, LOOK], reference=reference).score == 0


@pytest.mark.parametrize(
    "reference",
    [{"state": {}}, {**REFERENCE, "order": [[0, 5]]}, {**REFERENCE, "order": [[0, 1], [1, 0]]}, {"calls": []}, 7],
)
def test_references_that_pass_everything_or_nothing_are_refused(grade, reference):
    assert grade(STATE, [], reference=reference).why == "reference-missing"


SCHEMA = {
    "type": "object",
    "properties": {"to": {"type": "string"}, "amount": {"type": "number"}, "note": {"type": "string"}},
    "required": ["to", "amount"],
}


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        ({"to": "New York", "amount": 30.0}, True),
        ({"to": "new-york.", "amount": 30, "note": "rent"}, True),
        ({"to": "NYC", "amount": 30}, True),
        ({"to": "Boston", "amount": 30}, False),
        ({"to": "NYC", "amount": "30"}, False),
        ({"to": "NYC", "amount": True}, False),
        ({"to": "NYC", "amount": 10**400}, False),
        ({"to": "NYC"}, False),
        ({"to": "NYC", "amount": 30, "note": "food"}, False),
        ({"to": "NYC", "amount": 30, "from": "b"}, False),
    ],
)
def test_calls_with_alternatives(judged, pool, arguments, right):
    options = {"to": ["New York", "NYC"], "amount": [30.0], "note": ["rent", ""]}
    reference = {"state": {}, "calls": [{"name": "move", "options": options}], "only": True}
    files = {"state.json": b"{}", "calls.json": json.dumps([{"name": "move", "arguments": arguments}]).encode()}
    verdict = judged(tools.create(None, pool), reference, "", files, tools=(ToolSpec("move", "", SCHEMA),))
    assert (verdict.status, verdict.score) == ("graded", float(right))


def test_only_forbids_other_calls(grade):
    assert grade(STATE, [LOOK, MOVE, LOOK], reference={**REFERENCE, "only": True}).score == 0
    assert grade(STATE, [LOOK, MOVE], reference={**REFERENCE, "only": True}).score == 1
