"""What every verifier plugin has to hold: gold passes, attacks do not, nothing raises, hanging never pays.

A plugin is found by its name; what it needs besides (reference, gold, wrong and hanging answers) is in `SPECIMENS`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from temper.core import registry
from temper.core.task import Message, SandboxSpec, Task
from temper.core.trace import Segment, Trace, Verdict
from temper.sandboxes import local
from temper.verifiers.audit import attacks
from temper.verifiers.grading import grade
from temper.verifiers.pool import Pool

sys.path.insert(0, str(Path(__file__).parent))  # where `fakes` are
PROMPT = "What is asked: (1 + 1) * 21?"
TABLE = "CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1), (%d);"
MOVE = {"name": "move", "arguments": {"to": "b"}}
JUDGE = {"kind": "fakes.judge", "good": "forty-two bottles"}
TREE = '[gd_scene format=3]\n[node name="A" type="Node2D"]\nz = 4\n'
CUBE = """quads = [(0, 2, 3, 1), (4, 5, 7, 6), (0, 1, 5, 4), (2, 6, 7, 3), (0, 4, 6, 2), (1, 3, 7, 5)]
corner = lambda n: "vertex %f %f %f" % (2 * (n & 1), n & 2, (n & 4) / 2)
triangles = [t for a, b, c, d in quads for t in ((a, b, c), (a, c, d))]
facet = "facet normal 0 0 0\\nouter loop\\n%s\\n%s\\n%s\\nendloop\\nendfacet"
facets = [facet % tuple(map(corner, t)) for t in triangles]
open("part.stl", "w").write("\\n".join(["solid part", *facets, "endsolid part", ""]))
"""


@dataclass
class Specimen:
    """What a plugin is tried on. `deliver` turns an answer into artifacts, as the policy's environment would."""

    reference: Any
    gold: str
    wrong: str
    deliver: Callable[[str], dict[str, bytes]] = lambda answer: {}
    settings: dict[str, Any] = field(default_factory=dict)
    hang: str = ""
    task: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  # packages of an extra, without which it is skipped


def end_state(answer: str) -> dict[str, bytes]:
    """A simulator that understands one word, and whatever the policy wrote as its calls' arguments."""
    done = answer == "moved"
    calls = [MOVE] if done else [{"name": answer, "arguments": {answer: answer}}]
    state = {"at": "b" if done else "a"}
    return {"state.json": json.dumps(state).encode(), "calls.json": json.dumps(calls).encode()}


def module(answer: str) -> dict[str, bytes]:
    return {"m.py": answer.encode("utf-8", "surrogatepass")}


SPECIMENS = {
    "exact": Specimen({"answer": "Paris"}, "Paris", "London"),
    "similarity": Specimen({"answer": "siraP"}, "siraP", "Paris"),
    "math": Specimen({"answer": "42"}, "The answer is 42.", r"\boxed{41}", hang=r"\boxed{2^{2^{2^{100}}}}"),
    "code": Specimen(
        {"module": "m.py", "cases": [{"function": "f", "args": [2], "expect": 4}]},
        "def f(x): return x * x",
        "def f(x): return x",
        lambda answer: {"m.py": answer.encode("utf-8", "surrogatepass")},
        hang="while True: pass",
        task={"sandbox": SandboxSpec(files={"m.py": b""}), "artifacts": ("m.py",)},
    ),
    "sql": Specimen(
        {"databases": [TABLE % 2, TABLE % 3], "query": "SELECT SUM(a) FROM t"},
        "SELECT SUM(a) FROM t",
        "SELECT 3",
        lambda answer: {"query.sql": answer.encode("utf-8", "surrogatepass")},
        hang="WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT COUNT(*) FROM c",
    ),
    "tools": Specimen({"state": {"at": "b"}, "calls": [MOVE]}, "moved", "told", end_state),
    "tests": Specimen(
        {
            "tests": {"test_m.py": "import m\ndef test_f():\n    assert m.f(2) == 4\n"},
            "fail_to_pass": ["test_m.py::test_f"],
        },
        "def f(x): return x * x",
        "def f(x): return x",
        module,
        hang="while True: pass",
        task={"sandbox": SandboxSpec(files={"m.py": b""}), "artifacts": ("m.py",)},
    ),
    "output": Specimen(
        {"path": "m.py", "runs": [{"stdin": "3", "stdout": "27"}]},
        "print(int(input()) ** 3)",
        "print(3)",
        module,
        hang="while True: pass",
        task={"artifacts": ("m.py",)},
    ),
    "static": Specimen(
        {"paths": ["m.py"]},
        "def f(x): return x",
        "def f(x): return y",
        module,
        task={"sandbox": SandboxSpec(files={"m.py": b"import os\ndef f(x): return x"}), "artifacts": ("m.py",)},
    ),
    "performance": Specimen(
        {"module": "m.py", "function": "f", "calls": [[3000]], "solution": {"m.py": "def f(n): return sum(range(n))"}},
        "def f(n): return n * (n - 1) // 2",
        "def f(n): return sum(i for j in range(n) for i in (j,) * 500) // 500",
        module,
        hang="while True: pass",
        task={"sandbox": SandboxSpec(files={"m.py": b""}), "artifacts": ("m.py",)},
    ),
    "refactor": Specimen(
        {"module": "m.py", "inputs": {"f": [{"int": [-9, 9]}]}, "goals": [{"metric": "longest", "most": 1}]},
        "def f(x): return x + 1",
        "def f(x): return x",
        module,
        hang="while True: pass\ndef f(x): return x + 1",
        task={"sandbox": SandboxSpec(files={"m.py": b"def f(x):\n    x += 1\n    return x\n"}), "artifacts": ("m.py",)},
    ),
    "terminal": Specimen(
        {"files": {"a.txt": {"text": "moved"}}},
        "moved",
        "told",
        lambda answer: {"tree.json": json.dumps({"a.txt": {"kind": "file", "mode": "644", "text": answer}}).encode()},
    ),
    "scene": Specimen(
        {"file": "a.tscn", "rules": [{"rule": "has", "kind": "Node2D", "property": "z", "value": 4}], "solution": TREE},
        TREE,
        TREE.replace("4", "5"),
        lambda answer: {"a.tscn": answer.encode("utf-8", "surrogatepass")},
    ),
    "geometry": Specimen(
        {"script": CUBE, "volume": 8.0, "genus": 0},
        CUBE,
        CUBE.replace("2 *", "2.4 *"),
        lambda answer: {"part.py": answer.encode("utf-8", "surrogatepass")},
        hang="while True: pass",
        task={"artifacts": ("part.py",)},
        needs=("manifold3d", "trimesh"),
    ),
    "tables": Specimen({"answer": ["Paris", "17 km"]}, "Paris, 17 km", "Paris, 18 km"),
    "derivation": Specimen(
        {"given": ["2*x = 84"], "goal": "x = 42", "solution": "1. 2*x = 84 [given]\n2. x = 42 [from 1]"},
        "1. 2*x = 84 [given]\n2. x = 42 [from 1]",
        "1. 2*x = 84 [given]\n2. x = 43 [from 1]",
        needs=("z3",),
    ),
    "finance": Specimen(
        {"rows": [["USD", "2023"], ["Sales", "42"]], "program": "B2", "unit": "USD", "period": "2023", "decimals": 0},
        '{"value": 42, "unit": "USD", "period": "2023", "program": "B2"}',
        '{"value": 42, "unit": "USD", "period": "2023", "program": "42"}',
    ),
    "documents": Specimen(
        {
            "document": "They met in Paris. It rained.",
            "fields": {"town": {"kind": "text", "facts": [{"value": "Paris", "evidence": [[[0, 18]]]}]}},
        },
        '{"town": {"value": "Paris", "quote": "They met in Paris."}}',
        '{"town": {"value": "Paris", "quote": "It rained."}}',
    ),
    "report": Specimen(
        {
            "sections": [{"title": "Sales"}],
            "sources": {"S1": "Sales were $42."},
            "figures": [{"name": "sales", "value": "$42", "section": "Sales", "sources": ["S1"]}],
            "example": "## Sales\nSales were $42 [S1].",
        },
        "## Sales\nSales were $42 [S1].",
        "## Sales\nSales were $43 [S1].",
    ),
    "instructions": Specimen(
        {"constraints": [{"id": "startend:end_checker", "end_phrase": "the end"}], "example": "the end"},
        "This is the end",
        "This is not",
    ),
    "json_schema": Specimen(
        {"schema": {"type": "object", "required": ["city"]}, "example": '{"city": "Paris"}'},
        '{"city": "Rome"}',
        '{"town": "Rome"}',
        needs=("jsonschema",),
    ),
    "rubric": Specimen(
        {"criteria": [{"id": "number", "text": "It names the number of bottles."}]},
        "There are forty-two bottles.",
        "There are forty-one bottles.",
        settings={"panel": [JUDGE, JUDGE]},
    ),
    "judge": Specimen(
        {"answer": "It is forty-two bottles.", "criteria": "The number of bottles is right."},
        "There are forty-two bottles.",
        "There are forty-one bottles.",
        settings={"panel": [JUDGE, JUDGE]},
    ),
    "reward_model": Specimen(
        {"answer": "forty-two bottles"},
        "There are forty-two bottles.",
        "There is nothing.",
        settings={"function": "fakes.scorer:score"},
    ),
    "combine": Specimen(
        {"form": {"constraints": [{"id": "punctuation:no_comma"}], "example": "x"}, "value": {"answer": "42"}},
        "The answer is 42.",
        "The answer is 41.",
        settings={
            "rule": "gate",
            "parts": [
                {"name": "form", "verifier": {"kind": "instructions"}},
                {"name": "value", "verifier": {"kind": "math"}},
            ],
        },
    ),
}

ATTACKS = {name: text for name, text in attacks.TEXTS.items() if not attacks.is_bomb(name)} | {
    "prompt echo": PROMPT,
    "fullwidth": "\uff14\uff12",
    "zero width within": "4\u200b2 P\u200baris",
    "nested": r"\boxed{\boxed{42}}",
    "all answers": "40, 41, 42, 43, Paris, London, moved",
}


@pytest.fixture(scope="module")
def loop():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def pool(loop):
    pool = Pool(workers=2)
    asyncio.run_coroutine_threadsafe(pool.__aenter__(), loop).result()
    yield pool
    asyncio.run_coroutine_threadsafe(pool.__aexit__(), loop).result()


@pytest.fixture(scope="module")
def sandboxes(loop):
    backend = local.create()
    yield backend
    asyncio.run_coroutine_threadsafe(backend.close(), loop).result()


@pytest.fixture(params=sorted(registry.names("verifiers")))
def plugin(request, pool, sandboxes):
    specimen = SPECIMENS[request.param]
    for package in specimen.needs:
        pytest.importorskip(package, reason=f"{request.param} needs {package}, which an extra brings")
    module, config = registry.configure("verifiers", {"kind": request.param, **specimen.settings})
    return module.create(config, pool, sandboxes), specimen


def episode(specimen: Specimen, answer: str) -> tuple[Task, Trace, dict[str, bytes]]:
    task = Task(
        id="t", domain="d", messages=(Message("user", PROMPT),), reference=specimen.reference, **specimen.task
    )  # fmt: skip
    said = Segment.given((Message("user", PROMPT), Message("assistant", answer)), [])
    return task, Trace(id="x", task="t", domain="d", seed=0, segments=(said,)), specimen.deliver(answer)


@pytest.fixture
def judge(plugin, loop):
    verifier, specimen = plugin

    def run(answer: str) -> Verdict:
        return asyncio.run_coroutine_threadsafe(grade(*episode(specimen, answer), verifier), loop).result()

    return run


def test_it_has_a_name_and_a_hash_of_its_content(plugin):
    verifier, _ = plugin
    assert SPECIMENS[verifier.name]
    assert len(verifier.hash) >= 16


def test_gold_passes_and_wrong_does_not(plugin, judge):
    _, specimen = plugin
    assert judge(specimen.gold).score == 1.0
    wrong = judge(specimen.wrong)
    assert (wrong.status, wrong.blame, wrong.score) == ("graded", "policy", 0.0)
    assert wrong.evidence[0].text


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_never_score_and_never_raise(judge, attack):
    verdict = judge(ATTACKS[attack])
    assert (verdict.status, verdict.score) == ("graded", 0.0), verdict


def test_one_answer_has_one_verdict(plugin, judge):
    _, specimen = plugin
    for answer in (specimen.gold, specimen.wrong):
        assert judge(answer) == judge(answer) == judge(answer)


def test_a_second_event_loop_in_another_thread_may_share_the_pool(plugin, judge, pool):
    verifier, specimen = plugin

    async def elsewhere() -> Verdict:
        backend = local.create()  # a sandbox backend belongs to one event loop, the pool to all
        module, config = registry.configure("verifiers", {"kind": verifier.name, **specimen.settings})
        other = module.create(config, pool, backend)
        verdict = await grade(*episode(specimen, specimen.gold), other)
        await backend.close()
        return verdict

    found: list[Verdict] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(elsewhere())))
    thread.start()
    thread.join()
    assert found == [judge(specimen.gold)]


def test_a_missing_reference_is_the_tasks_fault(plugin, loop):
    verifier, specimen = plugin
    for reference in (None, {}, "text", 7):
        task, trace, artifacts = episode(specimen, specimen.gold)
        task = Task(id="t", domain="d", messages=(), reference=reference, artifacts=task.artifacts)
        verdict = asyncio.run_coroutine_threadsafe(grade(task, trace, artifacts, verifier), loop).result()
        assert (verdict.why, verdict.masked) == ("reference-missing", True)


@pytest.mark.parametrize("name", [name for name, specimen in SPECIMENS.items() if specimen.hang])
def test_a_hang_costs_its_limit_and_scores_nothing(name, pool, sandboxes, loop):
    specimen = SPECIMENS[name]
    for package in specimen.needs:
        pytest.importorskip(package, reason=f"{name} needs {package}, which an extra brings")
    module, config = registry.configure("verifiers", {"kind": name, "seconds": 1.5})
    verifier = module.create(config, pool, sandboxes)

    async def both() -> tuple[Verdict, list[Verdict], float]:
        hang = asyncio.ensure_future(grade(*episode(specimen, specimen.hang), verifier))
        await asyncio.sleep(0.1)
        others = await asyncio.gather(*(grade(*episode(specimen, specimen.gold), verifier) for _ in range(4)))
        return await hang, others, time.monotonic() - began

    began = time.monotonic()
    verdict, others, seconds = asyncio.run_coroutine_threadsafe(both(), loop).result()
    assert (verdict.status, verdict.blame, verdict.score) == ("graded", "policy", 0.0)
    assert [other.score for other in others] == [1.0] * 4
    assert seconds < 100
