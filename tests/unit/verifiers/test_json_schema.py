"""Conformance to schemas: the what the schema says, and what our strict reading of JSON adds."""

from __future__ import annotations

import pytest

from temper.verifiers import json_schema

SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 1}}}


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ('{"n": 3}', True),
        (' {"n": 3.0}\n', True),
        ('```json\n{"n": 3}\n```', True),
        ('{"n": 0}', False),
        ('{"n": true}', False),
        ('{"n": "3"}', False),
        ("{}", False),
        ('{"n": 3} and so on', False),
        ('{"n": 0, "n": 3}', False),
        ('{"n": NaN}', False),
        ("[" * 100_000, False),
        ("", False),
    ],
)
def test_answers(judged, pool, answer, right):
    verdict = judged(json_schema.create(None, pool), {"schema": SCHEMA, "example": '{"n": 1}'}, answer)
    assert (verdict.status, verdict.score) == ("graded", right)


@pytest.mark.parametrize("answer", ["1e999", "1" + "0" * 400, '"a{99999999999999}"'])
def test_what_no_arithmetic_can_check_is_wrong(judged, pool, answer):
    schema = {"if": {"type": "string"}, "then": {"format": "regex"}, "else": {"multipleOf": 0.01}}
    verdict = judged(json_schema.create(None, pool), {"schema": schema, "example": "1.5"}, answer)
    assert (verdict.status, verdict.score) == ("graded", 0.0), verdict


@pytest.mark.parametrize(("answer", "right"), [('{"n": 1.0}', 1), ('{"n": 2}', 0), ('{"n": 1, "m": 1}', 0)])
def test_equality_is_that_of_json(judged, pool, answer, right):
    reference = {"schema": SCHEMA, "example": '{"n": 1}', "equals": True}
    assert judged(json_schema.create(None, pool), reference, answer).score == right


def test_an_example_that_does_not_conform_and_a_schema_that_is_none_mask(judged, pool):
    verifier = json_schema.create(None, pool)
    for schema in (SCHEMA, {"type": "nothing"}):
        assert judged(verifier, {"schema": schema, "example": "{}"}, "{}").why == "reference-missing"


def test_nothing_is_fetched():
    with pytest.raises(Exception, match="Unresolvable"):
        json_schema.check("{}", {"schema": {"$ref": "http://127.0.0.1:9/schema.json"}, "equals": False})


def test_a_pattern_that_python_cannot_read_makes_no_schema():
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "patternProperties": {"\\p{Letter}": {}}}
    with pytest.raises(json_schema.SchemaError, match="no pattern"):
        json_schema.check('{"a": 1}', {"schema": schema, "equals": False})
