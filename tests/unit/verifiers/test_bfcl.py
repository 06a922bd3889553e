"""Calls that BFCL's own checker judges: right ones and near misses of its possible answers get the same verdict here.

The wheel bfcl-eval holds rows, answers and checker (install it with --no-deps; its model registry is not needed). Only
Python rows: those of Java and JavaScript are written in their languages' literals.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from temper.core.task import ToolSpec
from temper.verifiers import tools

pytestmark = pytest.mark.skipif(importlib.util.find_spec("bfcl_eval") is None, reason="needs the wheel bfcl-eval")
SUBJECTS = ("simple_python", "live_parallel")
MORE = ("multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple")
JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


@pytest.fixture(scope="module")
def checker() -> Any:
    """The wheel's `ast_checker`, with a registry of one model that changes no names."""
    registry = types.ModuleType("bfcl_eval.constants.model_config")
    registry.MODEL_CONFIG_MAPPING = {"m": types.SimpleNamespace(underscore_to_dot=False)}
    pytest.MonkeyPatch().setitem(sys.modules, registry.__name__, registry)
    return pytest.importorskip("bfcl_eval.eval_checker.ast_eval.ast_checker", exc_type=ImportError)


def rows(subject: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """(functions, possible answers)."""
    spec = importlib.util.find_spec("bfcl_eval")
    folder = Path(spec.origin).parent / "data"
    answers = folder / "possible_answer" / f"BFCL_v4_{subject}.json"
    for asked, known in zip(*(p.read_text().splitlines() for p in (folder / answers.name, answers)), strict=True):
        asked, known = json.loads(asked), json.loads(known)
        assert asked["id"] == known["id"]
        yield asked["function"], known["ground_truth"]


def one(options: Any) -> Any:
    """The plainest allowed value."""
    value = next((value for value in options if value != ""), None) if isinstance(options, list) else options
    if isinstance(value, dict):
        return {key: one(values) for key, values in value.items() if one(values) is not None}
    if isinstance(value, list):
        return [one_of(item) for item in value]
    return value


def one_of(item: Any) -> Any:
    return (
        {key: one(values) for key, values in item.items() if one(values) is not None}
        if isinstance(item, dict)
        else item
    )


def near(calls: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The calls as they are, and with one thing changed."""
    yield calls
    yield [*calls, calls[0]]
    yield calls[:-1]
    yield calls[::-1]
    for at, call in enumerate(calls):
        ((name, arguments),) = call.items()
        for other in changed(arguments):
            yield [*calls[:at], {name: other}, *calls[at + 1 :]]
        yield [*calls[:at], {f"{name}_2": arguments}, *calls[at + 1 :]]


def changed(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {**arguments, "unasked": 1}
    for key, value in arguments.items():
        yield {other: kept for other, kept in arguments.items() if other != key}
        for new in {
            str: lambda v: [v.upper(), f"{v}.", f" {v}-", f"{v}x", "", 7],
            bool: lambda v: [not v, int(v), str(v)],
            int: lambda v: [v + 1, float(v), str(v), bool(v)],
            float: lambda v: [v + 0.5, int(v), str(v)],
            list: lambda v: [v[::-1], v[:-1], [*v, "x"], str(v), [str(item).upper() for item in v]],
            dict: lambda v: [{**v, "unasked": 1}, dict(list(v.items())[1:]), [v]],
        }.get(type(value), lambda v: [])(value):
            yield {**arguments, key: new}


def json_schema(schema: Any) -> Any:
    if isinstance(schema, dict):
        kind = schema.get("type")
        kinds = {"type": JSON_TYPES.get(kind, kind)} if isinstance(kind, str) else {}
        return {key: json_schema(value) for key, value in schema.items()} | kinds
    return [json_schema(item) for item in schema] if isinstance(schema, list) else schema


def ours(functions: list[Any], answers: list[Any], calls: list[dict[str, Any]]) -> bool:
    specs = [ToolSpec(f["name"], "", json_schema(f["parameters"])) for f in functions]
    wanted = [(name, options) for answer in answers for name, options in answer.items()]
    expected = {
        "state": {}, "order": [], "only": True,
        "calls": [{"name": name, "arguments": {}, "options": options} for name, options in wanted],
        "schemas": {spec.name: spec.parameters for spec in specs},
    }  # fmt: skip
    made = [{"name": name, "arguments": arguments} for call in calls for name, arguments in call.items()]
    return tools.check(b"{}", json.dumps(made).encode(), expected)[0]


@pytest.mark.parametrize("subject", [*SUBJECTS, *(pytest.param(name, marks=pytest.mark.nightly) for name in MORE)])
def test_the_same_verdict_as_bfcls_checker(checker, subject):
    judged, differ = 0, []
    for functions, answers in rows(subject):
        right = [
            {name: {k: one(v) for k, v in options.items() if one(v) is not None}}
            for a in answers
            for name, options in a.items()
        ]
        for calls in near(right):
            try:
                theirs = checker.ast_checker(functions, calls, answers, checker.Language.PYTHON, subject, "m")["valid"]
            except (TypeError, AttributeError, KeyError, IndexError):
                continue  # their checker cannot judge it
            judged += 1
            if ours(functions, answers, calls) != theirs:
                differ.append((calls, answers, theirs))
    assert judged > 100
    assert not differ, (len(differ), judged, differ[:3])
