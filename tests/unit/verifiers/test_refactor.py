"""Refactorings: behaviour, interface and the metric are three things, and each of them fails alone."""

from __future__ import annotations

import ast
import asyncio
import random

import pytest

from temper.core.task import SandboxSpec
from temper.sandboxes import local
from temper.verifiers import refactor
from temper.verifiers.checks import metrics

OLD = """
def area(w, h=1):
    if w > 0:
        if h > 0:
            return w * h
    return 0

def twice(w):
    return area(w) * 2
"""
FLAT = """
def area(w, h=1):
    return w * h if w > 0 and h > 0 else 0

def twice(w):
    return area(w) * 2
"""
REFERENCE = {
    "module": "m.py",
    "inputs": {"area": [{"int": [-3, 9]}, {"int": [-3, 9]}], "twice": [{"int": [-3, 9]}]},
    "goals": [{"metric": "nesting", "most": 1}],
}


@pytest.fixture(scope="module")
def backend(loop):
    backend = local.create()
    yield backend
    asyncio.run_coroutine_threadsafe(backend.close(), loop).result()


@pytest.fixture
def grade(judged, pool, backend):
    def run(source, reference=REFERENCE, old=OLD):
        spec = SandboxSpec(files={"m.py": old.encode()})
        verifier = refactor.create(None, pool, backend)
        return judged(verifier, reference, "", {"m.py": source.encode()}, sandbox=spec, artifacts=("m.py",))

    return run


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (FLAT, ""),
        (FLAT.replace("return area(w) * 2", "return _doubled(area(w))\n\ndef _doubled(n):\n    return n + n"), ""),
        (FLAT.replace("(w, h=1)", "(w: int, h: int = 1)"), ""),
        (OLD, "nesting is 2"),
        (f"# tidy\n{OLD}", "nesting is 2"),
        (FLAT.replace("w > 0 and", "w >= 1 or"), "area("),
        (FLAT.replace(" else 0", " else None"), "area("),
        (FLAT.replace("h=1", "h=2"), "area takes (w, h=2), not (w, h=1)"),
        (FLAT.replace("twice(w)", "twice(x)").replace("area(w) * 2", "area(x) * 2"), "twice takes (x), not (w)"),
        (FLAT + "\ndef helper():\n    pass\n", "helper is public and new"),
        (FLAT.partition("def twice")[0], "twice is gone"),
        ("exec('def area(w, h=1): return w')\n" + FLAT, "behind which code could hide"),
        (f"import builtins as b\nb.exec('def area(w, h=1): return w')\n{FLAT}", "behind which code could hide"),
        (f"from importlib import import_module\n{FLAT}", "behind which code could hide"),
        (f"import re\n_WORD = re.compile('a')\n{FLAT}", ""),
        ("def area(w, h=1) return", "does not compile"),
        (f"_BIG = 0x{'f' * 5000}\n{FLAT}", "a number of more than"),
        ("", "is gone"),
    ],
)
def test_what_fails_and_why(grade, source, why):
    verdict = grade(source)
    assert (verdict.status, verdict.score) == ("graded", float(not why)), verdict.evidence
    assert why in (verdict.evidence[0].text if why else "")


def test_a_rename_is_followed_and_has_to_be_whole(grade):
    reference = {
        **REFERENCE,
        "goals": [{"metric": "uses", "most": 0, "of": "area"}],
        "renamed": {"area": "surface"},
    }
    assert grade(OLD.replace("area", "surface"), reference).score == 1.0
    assert "uses area is 1" in grade(OLD.replace("def area", "def surface"), reference).evidence[0].text + str(
        grade(OLD.replace("def area", "def surface"), reference).evidence
    )


def test_what_happens_to_an_argument_is_behaviour(grade):
    old = "def f(xs):\n    ys = []\n    for x in sorted(xs):\n        ys.append(x)\n    return ys\n"
    reference = {
        "module": "m.py",
        "inputs": {"f": [{"list": {"int": [0, 9]}}]},
        "goals": [{"metric": "longest", "most": 2}],
    }
    assert grade("def f(xs):\n    return sorted(xs)\n", reference, old).score == 1.0
    assert grade("def f(xs):\n    xs.sort()\n    return list(xs)\n", reference, old).score == 0.0


def test_old_code_that_fits_already_is_the_tasks_fault(grade):
    assert grade(FLAT, old=FLAT).why == "gold-fails"
    assert grade(FLAT, {**REFERENCE, "inputs": {"nowhere": [{"int": [0, 1]}]}}).why == "gold-fails"
    assert grade(FLAT, {**REFERENCE, "goals": []}).why == "reference-missing"


MEASURED = """
def f(x, y):
    if x and y or x > 3:
        for i in range(x):
            while i:
                i -= 1
    elif x == 2:
        return [n for n in range(y) if n]
    return 0.19 if y else 0.19

def g(a):
    b = a + 1
    c = b * 2
    d = c - 3
    return d

def h(p):
    q = p + 1
    r = q * 2
    s = r - 3
    return [s]
"""


@pytest.mark.parametrize(
    ("metric", "of", "value"),
    # complexity: 1 + if, or, and, for, while, elif, comprehension (for and if), conditional expression, as radon has it
    [("complexity", "", 10), ("nesting", "", 3), ("longest", "", 7), ("duplicates", "", 3), ("literals", "0.19", 2),
     ("uses", "x", 5), ("globals", "", 0)],
)  # fmt: skip
def test_metrics(metric, of, value):
    assert metrics.measure({"m.py": ast.parse(MEASURED)}, metric, of) == value


def test_inputs_begin_with_edges_and_depend_on_the_seed_alone():
    kinds = [{"list": {"int": [0, 9]}, "most": 4}, {"one of": ["a", "b"]}]
    lists = refactor.argument_lists(random.Random(1), kinds, 30)
    assert lists == refactor.argument_lists(random.Random(1), kinds, 30)
    assert [len(first) for first, _ in lists[:4]] == [0, 1, 4, 2]
    assert refactor.argument_lists(random.Random(1), [{"int": [-2, 2]}], 30) == [[-2], [-1], [0], [1], [2]]
