"""Several verifiers as one: rules, names, blame, and shaped rewards. Expected values are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from temper.core.errors import ConfigError
from temper.core.task import Message
from temper.core.trace import Segment, Trace
from temper.verifiers import combine

PARTS = [
    combine.Part(name="form", verifier={"kind": "instructions"}),
    combine.Part(name="value", verifier={"kind": "math"}, weight=3.0),
]
REFERENCE = {"form": {"constraints": [{"id": "punctuation:no_comma"}], "example": "42"}, "value": {"answer": "42"}}
FINE, NO_FORM, NO_VALUE, NEITHER = "It is 42", "Well, it is 42", "It is 41", "Well, it is 41"


@pytest.mark.parametrize(
    ("rule", "scores"),
    [
        ("sum", {FINE: 1, NO_FORM: 0.75, NO_VALUE: 0.25, NEITHER: 0}),
        ("gate", {FINE: 1, NO_FORM: 0, NO_VALUE: 0, NEITHER: 0}),
        ("sequence", {FINE: 1, NO_FORM: 0, NO_VALUE: 0.25, NEITHER: 0}),
        ("minimum", {FINE: 1, NO_FORM: 0, NO_VALUE: 0, NEITHER: 0}),
    ],
)
def test_rules(judged, pool, rule, scores):
    verifier = combine.create(combine.Config(rule=rule, parts=PARTS), pool, None)
    assert {answer: judged(verifier, REFERENCE, answer).score for answer in scores} == scores


def test_components_keep_the_names_of_their_parts(judged, pool):
    verifier = combine.create(combine.Config(rule="sum", parts=PARTS), pool, None)
    verdict = judged(verifier, REFERENCE, NEITHER)
    assert verdict.components == {"form": 0, "form.share": 0, "form.0.punctuation:no_comma": 0, "value": 0}
    assert [evidence.text.partition(":")[0] for evidence in verdict.evidence] == ["form", "value"]


@pytest.mark.parametrize("rule", ["gate", "sequence"])
def test_what_is_not_reached_is_not_run(judged, pool, rule):
    """The second part's reference is missing, which nobody notices behind a first part that fails."""
    verifier = combine.create(combine.Config(rule=rule, parts=PARTS), pool, None)
    reference = {**REFERENCE, "value": {"answer": ""}}
    assert judged(verifier, reference, NO_FORM).score == 0
    assert judged(verifier, reference, FINE).masked


@pytest.mark.parametrize("rule", ["sum", "minimum"])
def test_a_part_that_cannot_be_graded_masks_the_whole(judged, pool, rule):
    verifier = combine.create(combine.Config(rule=rule, parts=PARTS), pool, None)
    verdict = judged(verifier, {**REFERENCE, "value": {"answer": ""}}, FINE)
    assert (verdict.why, verdict.blame, verdict.masked) == ("reference-missing", "task", True)
    assert verdict.evidence[0].text.startswith("value: ")


@pytest.mark.parametrize("reference", [{}, {"form": REFERENCE["form"]}, {**REFERENCE, "taste": {}}, "text"])
def test_every_part_needs_its_reference(judged, pool, reference):
    verifier = combine.create(combine.Config(rule="sum", parts=PARTS), pool, None)
    assert judged(verifier, reference, FINE).why == "reference-missing"


@pytest.mark.parametrize(
    "parts", [[], [PARTS[0], PARTS[0]], [combine.Part(name="a", verifier={"kind": "math"}, weight=0)]]
)
def test_parts_have_distinct_names_and_weights(pool, parts):
    with pytest.raises(ConfigError, match="distinct names"):
        combine.create(combine.Config(rule="sum", parts=parts), pool, None)


def test_the_hash_follows_the_parts(pool):
    def hash(**settings) -> str:
        part = combine.Part(name="value", verifier={"kind": "math", **settings})
        return combine.create(combine.Config(rule="sum", parts=[part]), pool, None).hash

    assert hash() == hash(seconds=3.0) != hash(seconds=4.0)


def said(text: str, tokens: int, parent: int, malformed: str = "") -> Segment:
    message = Message("assistant", text, malformed=malformed)
    sampled = {"trainable": np.ones(tokens, bool), "logprobs": np.zeros(tokens), "versions": np.zeros(tokens, np.int32)}
    return Segment(parent=parent, author="policy", messages=(message,), ids=np.zeros(tokens, np.int32), **sampled)


def test_rewards_are_shaped_by_turn_by_malformed_message_and_by_length():
    """Three turns of 40 tokens, the second malformed; 120 tokens are 20 of 40 over 100."""
    prompt = Segment.given((Message("user", "?"),), [1])
    segments = (prompt, said("a", 40, 0), said("other branch", 500, 1), said("b", 40, 1, "no JSON"), said("c", 40, 3))
    trace = Trace(id="x", task="t", domain="d", seed=0, segments=segments)
    shaping = combine.Shaping(turn=0.1, malformed=0.25, length=100, slack=40, length_weight=0.5)
    rewards, taken = combine.shaped(1.0, trace, shaping)
    assert rewards == pytest.approx({1: 0.0, 3: -0.35, 4: 1 - 0.1 - 0.25})
    assert taken == pytest.approx({"shaping.turns": -0.2, "shaping.malformed": -0.25, "shaping.length": -0.25})
    assert sum(rewards.values()) == pytest.approx(1.0 + sum(taken.values()))
    assert combine.shaped(1.0, trace, combine.Shaping()) == ({1: 0, 3: 0, 4: 1.0}, dict.fromkeys(taken, 0))
