"""Tool use by its end state and its calls: doing nothing, doing too much and doing it in the wrong order all fail."""

from __future__ import annotations

import itertools
import json
import random

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


@pytest.mark.parametrize(
    ("values", "right"), [([3, 4], True), ([3.0, 4.0], False), ([3, True], False), ([], True), ("3, 4", False)]
)
def test_items_of_a_list_have_the_declared_type(values, right):
    """As BFCL's checker has it."""
    schema = {"properties": {"x": {"type": "array", "items": {"type": "integer"}}}}
    assert tools.allowed({"x": values}, {"x": [[3, 4], ""]}, schema) is right
    assert tools.allowed({"x": "sales"}, {"x": ["sales"]}, schema)  # the name of a variable that holds one


def test_only_forbids_other_calls(grade):
    assert grade(STATE, [LOOK, MOVE, LOOK], reference={**REFERENCE, "only": True}).score == 0
    assert grade(STATE, [LOOK, MOVE], reference={**REFERENCE, "only": True}).score == 1


def places(wanted, order, made):
    """`assign` of calls whose one argument has to be among the letters of `wanted`."""
    options = [{"name": "put", "arguments": {}, "options": {"x": list(letters)}} for letters in wanted]
    schema = {"properties": {"x": {"type": "string"}}, "required": ["x"]}
    return tools.assign(options, order, [("put", {"x": letter}) for letter in made], {"put": schema})


@pytest.mark.parametrize(
    ("wanted", "order", "made", "right"),
    [
        # the first wanted call may take either, and must leave the other its only one
        (["ab", "a"], [], "ab", [1, 0]),
        (["abc", "ab", "a"], [], "abc", [2, 1, 0]),
        (["ab", "a"], [], "bb", [0, None]),
        # the same call twice, of which one has to come before b: it is the first of them, whichever is named first
        (["a", "a", "b"], [[1, 2]], "aba", [2, 0, 1]),
        (["a", "a", "b"], [[0, 2]], "aba", [0, 2, 1]),
        (["a", "a", "b", "b"], [[1, 2], [0, 3]], "abab", None),
        # the earliest place of the first would leave the second one out of order
        (["ab", "a", "c"], [[0, 2], [1, 2]], "abc", [1, 0, 2]),
        (["ab", "ac", "b"], [[0, 1], [1, 2]], "abcb", [0, 2, 3]),
        (["ab", "ab", "b"], [[2, 0]], "abb", None),
    ],
)
def test_calls_are_paired_in_whatever_way_is_right(wanted, order, made, right):
    found = places(wanted, order, made)
    if right:
        assert found == right
    assert all(found.count(place) == 1 for place in found if place is not None)
    assert all(found[i] < found[j] for i, j in order)
    assert all(made[place] in wanted[n] for n, place in enumerate(found) if place is not None)


def test_pairing_agrees_with_trying_all_of_them():
    rng = random.Random(0)
    outcomes = set()
    for _ in range(2000):
        wanted = ["".join(rng.sample("abc", rng.randint(1, 2))) for _ in range(rng.randint(1, 4))]
        pairs = list(itertools.combinations(rng.sample(range(len(wanted)), len(wanted)), 2))
        order = [list(pair) for pair in rng.sample(pairs, rng.randint(0, len(pairs)))]
        made = "".join(rng.choice("abc") for _ in range(rng.randint(1, 5)))
        possible = any(
            all(made[place] in letters for letters, place in zip(wanted, tried, strict=True))
            and all(tried[i] < tried[j] for i, j in order)
            for tried in itertools.permutations(range(len(made)), len(wanted))
        )
        found = places(wanted, order, made)
        assert possible == (None not in found and all(found[i] < found[j] for i, j in order)), (wanted, order, made)
        outcomes.add(possible)
    assert outcomes == {True, False}


def test_many_calls_beside_the_wanted_ones_cost_little():
    wanted, chain = ["ab"] * 12, [[n, n + 1] for n in range(11)]
    assert places(wanted, chain, "ab" * 500) == list(range(12))
    assert places(["a", "b"] * 10, [[18, 19]], "a" * 1000 + "b" * 9).count(None) == 1
