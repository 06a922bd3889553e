"""Unit tests against delivered modules: what a grader in the candidate's own process lets through does not pass."""

from __future__ import annotations

import asyncio

import pytest

from temper.core.task import SandboxSpec
from temper.sandboxes import local
from temper.verifiers import tests

TEST = """
import unittest
from m import Box, Full, f, g

def test_value():
    assert f(2) == 4

def test_error():
    try:
        f("x")
    except TypeError:
        return
    raise AssertionError("no TypeError")

class TestBox:
    def test_state(self):
        box = Box(2)
        box.put(1)
        box.put(5)
        assert (len(box), list(box), 5 in box, box.items) == (2, [1, 5], True, [1, 5])
        assert Box(2) == Box(2) and Box(1) < Box(2) and isinstance(Box(1), Box)
        assert Box(2) != Box(3)

    def test_own_error(self):
        box = Box(0)
        try:
            box.put(1)
        except Full as error:
            assert str(error) == "0"
        else:
            raise AssertionError

def test_callback_and_mutation():
    numbers = [3, 1]
    assert g(numbers, lambda n: n * 10) == {3: 30, 1: 10}
    assert numbers == [1, 3]

def test_later():
    raise unittest.SkipTest("later")
"""
MODULE = """
class Full(ValueError):
    pass

class Box:
    def __init__(self, size): self.size, self.items = size, []
    def put(self, item):
        if len(self.items) >= self.size: raise Full(self.size)
        self.items.append(item)
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __eq__(self, other): return self.size == other.size
    def __lt__(self, other): return self.size < other.size

def f(x):
    return x * x

def g(numbers, call):
    found = {n: call(n) for n in numbers}
    numbers.sort()
    return found
"""
IDS = ["test_value", "test_error", "TestBox", "test_callback_and_mutation"]
REFERENCE = {
    "tests": {"test_m.py": TEST},
    "fail_to_pass": [f"test_m.py::{name}" for name in IDS],
    "pass_to_pass": ["test_m.py::test_later"],
    "visible": ["test_m.py::test_value"],
}
ALWAYS = "class E:\n    def __eq__(s, o): return True\n    __hash__ = None\ndef f(x): return E()\n"
ATTACKS = {
    "always equal": ALWAYS,
    "always equal in a list": ALWAYS.replace("return E()", "return [E()]"),
    "never unequal": ALWAYS.replace("    __hash__", "    def __ne__(s, o): return False\n    __hash__"),
    "equal is one": ALWAYS.replace("return True", "return 1"),
    "an int that lies": "class I(int):\n    def __eq__(s, o): return True\ndef f(x): return I(7)",
    "exit": "import sys\nsys.exit(0)",
    "exit in the call": "import sys\ndef f(x): sys.exit(0)",
    "hard exit": "import os\nos._exit(0)",
    "hard exit in the call": "import os\ndef f(x): os._exit(0)",
    "assertions off": "import builtins\nbuiltins.AssertionError = type('A', (BaseException,), {})\ndef f(x): return 0",
    "patched builtins": "import builtins\nfor n in ('int', 'isinstance', 'type', 'len', 'all', 'any'):\n"
    "    setattr(builtins, n, lambda *a: True)\ndef f(x): return 0",
    "patched main": "import __main__\n__main__.encode = lambda *a, **k: ['int', '0x4']\ndef f(x): return 0",
    "forged replies": "import os\nfor fd in range(3, 30):\n"
    '    try: os.write(fd, b\'["value", ["int", "0x4"]]\\n\' * 9)\n    except OSError: pass\ndef f(x): return 0',
    "reads its parent": "import os\ndef f(x):\n    return open(f'/proc/{os.getppid()}/mem', 'rb').read(9)",
    "kills its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "skips": "import unittest\ndef f(x): raise unittest.SkipTest('no')",
    "garbage in form": "import json, os\nfor fd in range(3, 30):\n"
    "    try: os.write(fd, json.dumps(['test_m.py::test_value', ['passed'], '']).encode() + b'\\n')\n"
    "    except OSError: pass\ndef f(x): return 0",
    "gives up": "import pytest\ndef f(x): pytest.xfail('no')",
    "rewrites the tests": "import glob\nfor p in glob.glob('**/test_*.py', recursive=True):\n"
    "    open(p, 'w').write('def test_value(): pass')\ndef f(x): return 0",
}
ONE = {"tests": {"test_m.py": "from m import f\ndef test_value():\n    assert f(2) == 4\n"}}
ONE["fail_to_pass"] = ["test_m.py::test_value"]


@pytest.fixture(scope="module")
def backend(loop):
    backend = local.create()
    yield backend
    asyncio.run_coroutine_threadsafe(backend.close(), loop).result()


@pytest.fixture
def grade(judged, backend):
    def run(source, reference=REFERENCE, runner="isolated", **files):
        spec = SandboxSpec(files={"m.py": b"", "test_m.py": b"def test_value(): pass", **files})
        delivered = {"m.py": source.encode(), "test_m.py": b"", "conftest.py": b"import os; os._exit(0)"}
        verifier = tests.create(tests.Config(seconds=20.0, runner=runner), None, backend)
        return judged(verifier, reference, "", delivered, sandbox=spec, artifacts=tuple(delivered))

    return run


def test_functions_classes_errors_callbacks_and_mutations(grade):
    verdict = grade(MODULE)
    assert verdict.score == 1.0, verdict.evidence
    assert verdict.components == {"fail_to_pass": 1.0, "pass_to_pass": 1.0, "visible": 1.0, "hidden": 1.0}


def test_a_skipped_test_is_no_passed_one(grade):
    reference = {**REFERENCE, "fail_to_pass": ["test_m.py::test_later"], "pass_to_pass": []}
    assert grade(MODULE, reference).score == 0.0
    assert grade(MODULE, {**REFERENCE, "fail_to_pass": ["test_m.py::test_nowhere"]}).score == 0.0


@pytest.mark.parametrize("runner", ["isolated", "pytest"])
def test_delivered_code_cannot_call_a_test_off(grade, runner):
    reference = {
        "tests": {"test_m.py": "from m import f, g\ndef test_f(): assert f(2) == 4\ndef test_g(): assert g() == 1\n"},
        "fail_to_pass": ["test_m.py::test_f"],
        "pass_to_pass": ["test_m.py::test_g"],
    }  # fmt: skip
    source = "import unittest\ndef f(x): return x * x\ndef g(): {}\n"
    assert grade(source.format("return 1"), reference, runner).score == 1.0
    assert grade(source.format("raise unittest.SkipTest('no')"), reference, runner).score == 0.0


def test_objects_of_the_candidate_are_neither_more_nor_less_than_plain_data(grade):
    """abs(f(x) - 4) < 1e-6 is how HumanEval compares floats."""
    near = {"tests": {"test_m.py": "from m import f\ndef test_f():\n    assert abs(f(2) - 4) < 1e-6\n"}}
    near["fail_to_pass"] = ["test_m.py::test_f"]
    trick = "class E:\n    def __sub__(s, o): return {}\n    def __abs__(s): return 0\ndef f(x): return E()\n"
    assert grade("def f(x): return 2.0 * x", near).score == 1.0
    assert grade(trick.format("s"), near).score == grade(trick.format("0"), near).score == 0.0


def test_what_fails_is_explained_for_visible_tests_only(grade):
    verdict = grade(MODULE.replace("x * x", "x + 1"))
    assert verdict.evidence[0].text == "test_m.py::test_value failed: assert f(2) == 4: AssertionError: "
    hidden = grade(MODULE.replace("x * x", "x + 1"), {**REFERENCE, "visible": []})
    assert hidden.evidence[0].text == "a hidden test failed"


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_do_not_pass(grade, attack):
    verdict = grade(ATTACKS[attack], ONE)
    assert (verdict.status, verdict.score) == ("graded", 0.0)


UNDER_PYTEST = (
    "always equal in a list", "equal is one", "exit in the call", "hard exit", "patched builtins", "skips", "gives up",
    "garbage in form",
)  # fmt: skip


@pytest.mark.parametrize(
    "attack",
    [*UNDER_PYTEST, *(pytest.param(a, marks=pytest.mark.nightly) for a in ATTACKS if a not in UNDER_PYTEST)],
)
def test_attacks_do_not_pass_under_pytest_either(grade, attack):
    """Those that are not written against this very grader; see the module's words about forging."""
    verdict = grade(ATTACKS[attack], ONE, "pytest")
    assert (verdict.status, verdict.score) == ("graded", 0.0), verdict


def test_tests_that_are_not_yet_read_cannot_be_rewritten(grade):
    reference = {
        "tests": {"test_a.py": "import m\ndef test_a(): assert m\n", "test_b.py": ONE["tests"]["test_m.py"]},
        "fail_to_pass": ["test_a.py::test_a", "test_b.py::test_value"],
    }
    rewriting = "open('test_b.py', 'w').write('def test_value(): pass')\ndef f(x): return {}\n"
    assert grade("def f(x): return 4", reference, "pytest").score == 1.0
    assert grade(rewriting.format(0), reference, "pytest").score == 0.0


def test_pytest_gives_fixtures_and_parameters(grade):
    source = """
import pytest
from collections import Counter, OrderedDict, namedtuple
from m import f

@pytest.fixture
def two():
    return 2

@pytest.mark.parametrize("n", [1, 2, 3])
def test_square(n, two):
    assert f(n) ** two == n ** 4

def test_odd_classes():
    assert Counter("aa") == {"a": 2} and OrderedDict(a=1) == {"a": 1} and namedtuple("P", "x")(1) == (1,)
    assert f(2) == pytest.approx(4.0)

@pytest.mark.xfail(strict=True)
def test_known():
    assert f(2) == 5

@pytest.mark.xfail
def test_known_no_more():
    assert f(2) == 4

@pytest.mark.xfail
def test_raises():
    f(None)
"""
    ids = [
        "test_m.py::test_square[2]",
        "test_m.py::test_square",
        "test_m.py::test_odd_classes",
        "test_m.py::test_known",
        "test_m.py::test_known_no_more",
        "test_m.py::test_raises",
    ]
    reference = {"tests": {"test_m.py": source}, "fail_to_pass": ids}
    right = grade("def f(x): return x * x", reference, "pytest")
    assert right.score == 1.0, right.evidence
    wrong = grade("def f(x): return x * x if x < 3 else 0", reference, "pytest")
    assert wrong.components["fail_to_pass"] == pytest.approx(5 / 6)


def test_coverage_of_the_change(judged, backend):
    module = b"def f(x):\n    if x > 2:\n        return 9\n    return x * x\n"
    spec = SandboxSpec(files={"m.py": b"def f(x):\n    return x * x\n"})
    verifier = tests.create(None, None, backend)
    reference = {**ONE, "cover": 1.0}
    verdict = judged(verifier, reference, "", {"m.py": module}, sandbox=spec, artifacts=("m.py",))
    assert (verdict.components["fail_to_pass"], verdict.components["covered"], verdict.score) == (1.0, 0.5, 0.0)
    assert verdict.evidence[0].text == "the tests run 1 of the 2 lines that were changed"


def test_a_hang_is_the_policys_and_a_reference_without_tests_the_tasks(grade, judged, backend):
    verifier = tests.create(tests.Config(seconds=1.0), None, backend)
    hang = judged(verifier, ONE, "", {"m.py": b"while True: pass"}, artifacts=("m.py",))
    assert (hang.why, hang.score) == ("deadline", 0.0)
    assert grade(MODULE, {"tests": {}, "fail_to_pass": []}).why == "reference-missing"
