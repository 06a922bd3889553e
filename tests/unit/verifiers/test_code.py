"""Code is graded by what its functions give, in a fresh box that never sees an expected value."""

from __future__ import annotations

import asyncio

import pytest

from temper.core.blame import FaultError
from temper.core.protocols import Sandbox
from temper.core.task import SandboxSpec
from temper.sandboxes import local
from temper.verifiers import boxes as boxes_of
from temper.verifiers import code

CASES = [
    {"function": "f", "args": [2], "expect": 4},
    {"function": "f", "args": [-3], "expect": 9},
    {"function": "f", "args": ["x"], "raises": "TypeError"},
]
REFERENCE = {"module": "m.py", "cases": CASES, "solution": {"m.py": "def f(x):\n    return x * x\n"}}

# the classes of research: HumanEval passes 37 of 40 with an always-equal object, 40 of 40 with sys.exit(0)
ATTACKS = {
    "always equal": "class E:\n    def __eq__(s, o): return True\n    __hash__ = None\ndef f(x): return E()",
    "an int that lies": "class I(int):\n    def __eq__(s, o): return True\ndef f(x): return I(4)",
    "exit at import": "import sys; sys.exit(0)",
    "_exit at import": "import os; os._exit(0)",
    "_exit in the call": "import os\ndef f(x): os._exit(0)",
    "kills the driver": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "prints a report": 'print(\'{"nonce": "", "outcomes": [["value", ["int", "0x4"]]]}\')\ndef f(x): return 0',
    "patched builtins": "import builtins, json\nbuiltins.type = lambda *a: int\nbuiltins.hex = lambda x: '0x4'\n"
    'json.dumps = lambda *a, **k: \'["value", ["int", "0x4"]]\'\ndef f(x): return 0',
    "patched encoder": "import __main__\n__main__.encode = lambda v: ['int', '0x4']\ndef f(x): return v",
    "garbage on the pipe": "import os\nfor fd in range(3, 20):\n"
    "    try: os.write(fd, b'[[[\\n')\n    except OSError: pass\n"
    "def f(x): return x * x",
    "forged outcomes": "import os\nfor fd in range(3, 20):\n"
    '    try: os.write(fd, b\'["raised", 5, 1]\\n["value", [[]]]\\n7\\n\')\n    except OSError: pass\n',
    "wrong type": "def f(x): return float(x * x)",
    "syntax": "def f(x) return x",
    "nothing": "",
    "constant": "def f(x): return 4",
}


class Boxes:
    """The real backend, which remembers what was asked of it, and can be lost."""

    def __init__(self, backend) -> None:
        self.backend, self.lost, self.opened = backend, False, []

    async def open(self, spec: SandboxSpec) -> Sandbox:
        if self.lost:
            raise FaultError("backend-lost", "boxes", "gone")
        self.opened.append(spec)
        return await self.backend.open(spec)

    def capabilities(self):
        return self.backend.capabilities()


@pytest.fixture(scope="module")
def backend(loop):
    backend = local.create()
    yield backend
    asyncio.run_coroutine_threadsafe(backend.close(), loop).result()


@pytest.fixture
def boxes(backend) -> Boxes:
    return Boxes(backend)


@pytest.fixture
def grade(judged, boxes, workspace):
    def run(source: str, reference=REFERENCE, **artifacts: bytes):
        files = {"m.py": source.encode(), **artifacts}
        alone = boxes_of.Interpreter(start="sandbox")
        verifier = code.create(code.Config(seconds=2.0, interpreter=alone), None, boxes)
        return judged(verifier, reference, "done", files, sandbox=workspace, artifacts=("m.py",))

    return run


def test_the_solution_passes(grade):
    verdict = grade(REFERENCE["solution"]["m.py"])
    assert (verdict.score, verdict.components) == (1.0, {"passed": 1.0})


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_do_not_pass(grade, attack):
    verdict = grade(ATTACKS[attack])
    assert (verdict.status, verdict.score) == ("graded", 0.0)
    assert verdict.evidence


def test_only_declared_artifacts_are_used_and_expected_values_stay_out(grade, boxes):
    reference = {"module": "m.py", "cases": [{"function": "f", "args": [1], "expect": "needle-4711"}]}
    grade("def f(x): return 1", reference, **{"conftest.py": b"raise SystemExit(0)", "README": b"changed"})
    assert boxes.opened[0].files == {"m.py": b"def f(x): return 1", "README": b"fix f"}
    assert "needle-4711" not in grade("def f(x): return 1", reference).evidence[0].text


def test_evidence_names_the_first_failing_case(grade):
    hidden = grade("def f(x): return x + x")
    assert hidden.evidence[0].text == "f(-3) returned -6, which is wrong"
    assert hidden.components["passed"] == pytest.approx(1 / 3)
    visible = {**REFERENCE, "cases": [{**CASES[1], "visible": True}]}
    assert grade("def f(x): return x + x", visible).evidence[0].text.endswith("expected 9")
    assert "ZeroDivisionError: division by zero" in grade("def f(x): return 1 / 0").evidence[0].text


@pytest.mark.parametrize(
    ("expression", "expected", "right"),
    [
        ("(1, [2.5, None], {'a': {1, 2}})", (1, [2.5, None], {"a": {2, 1}}), True),
        ("[1, 2]", (1, 2), False),
        ("True", 1, False),
        ("1", True, False),
        ("{1: 'a', 'b': 2}", {"b": 2, 1: "a"}, True),
        ("frozenset({1})", {1}, False),
        ("'\\u00e9\\ud800'", "é\ud800", True),
        ("b'x'", "x", False),
        ("float('nan')", float("nan"), True),
        ("-0.0", 0.0, True),
        ("(1 + 0j).conjugate()", 1 + 0j, True),
        ("0.1 + 0.2", 0.3, False),
        ("10 ** 400", 10**400, True),
        ("[0] * 300000", [0] * 10, False),
    ],
)
def test_values_are_compared_by_type_and_value(grade, expression, expected, right):
    reference = {"module": "m.py", "cases": [{"function": "f", "expect": expected}]}
    assert grade(f"def f(): return {expression}", reference).score == right


def test_tolerance_is_for_the_cases_that_say_so(grade):
    reference = {"module": "m.py", "cases": [{"function": "f", "expect": [0.3], "tolerance": 1e-9}]}
    assert grade("def f(): return [0.1 + 0.2]", reference).score == 1
    assert grade("def f(): return [0.31]", reference).score == 0
    assert grade("def f(): return ['0.3']", reference).score == 0
    nan = {"module": "m.py", "cases": [{"function": "f", "expect": [float("nan"), 0.3], "tolerance": 1e-9}]}
    assert grade("def f(): return [float('nan'), 0.1 + 0.2]", nan).score == 1


def test_blame(grade, judged, boxes, workspace):
    assert grade("while True: pass").why == "deadline"
    verifier = code.create(None, None, boxes)
    missing = judged(verifier, REFERENCE, "done", {}, sandbox=workspace, artifacts=("m.py",))
    assert (missing.why, missing.masked) == ("artifact-missing", False)
    for cases in ([], [{"function": "f"}], [{"function": "f", "expect": [object()]}]):
        assert grade("", {**REFERENCE, "cases": cases}).why == "reference-missing"
    boxes.lost = True
    lost = grade(REFERENCE["solution"]["m.py"])
    assert (lost.status, lost.why, lost.score) == ("infra", "backend-lost", 0.0)


@pytest.mark.parametrize("start", ["fork", "sandbox"])
def test_files_that_do_not_fit_into_the_box_are_the_policys(judged, backend, start):
    small = SandboxSpec(files={"m.py": b""}, disk=1 << 20)
    config = code.Config(interpreter=boxes_of.Interpreter(start=start))
    flood = {"m.py": b"def f(x): return x * x\n" + b"#" * (1 << 20)}
    verdict = judged(code.create(config, None, backend), REFERENCE, "", flood, sandbox=small, artifacts=("m.py",))
    assert (verdict.status, verdict.why, verdict.score) == ("graded", "disk", 0.0)


def test_modules_in_packages(judged, boxes):
    spec = SandboxSpec(files={"pkg/__init__.py": b"", "pkg/base.py": b"K = 3\n"})
    reference = {"module": "pkg/m.py", "cases": [{"function": "f", "kwargs": {"x": 2}, "expect": 6}]}
    files = {"pkg/m.py": b"from pkg.base import K\ndef f(x): return K * x\n"}
    verifier = code.create(None, None, boxes)
    assert judged(verifier, reference, "", files, sandbox=spec, artifacts=("pkg/m.py",)).score == 1


@pytest.mark.parametrize("start", ["fork", "process"])
def test_programs_in_forks_of_a_zygote_and_in_new_processes_are_judged_alike(judged, backend, workspace, start):
    config = code.Config(seconds=2.0, interpreter=boxes_of.Interpreter(start=start))
    verifier = code.create(config, None, backend)

    def score(source: str) -> tuple[str, float]:
        verdict = judged(verifier, REFERENCE, "", {"m.py": source.encode()}, sandbox=workspace, artifacts=("m.py",))
        return verdict.status, verdict.score

    assert score(REFERENCE["solution"]["m.py"]) == ("graded", 1.0)
    assert {name: score(source) for name, source in ATTACKS.items()} == dict.fromkeys(ATTACKS, ("graded", 0.0))
    assert score("while True: pass") == ("graded", 0.0)
    assert score(REFERENCE["solution"]["m.py"]) == ("graded", 1.0)


COUNTER = """
import threading

def count(threads, times):
    total = [0]
    lock = threading.Lock()
    def work():
        for _ in range(times):
            {body}
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    return total[0]
"""
LOCKED = "with lock:\n                total[0] += 1"
TASKS = """
import asyncio

async def spend(account, n):
    if account["left"] >= n:
        {body}
        account["left"] -= n

async def both():
    account = {{"left": 10}}
    await asyncio.gather(*(spend(account, n) for n in (7, 8)))
    return account["left"] >= 0

def run():
    return asyncio.run(both())
"""
ONE_AT_A_TIME = """
import threading

def run():
    a, b = threading.Lock(), threading.Lock()
    def work(first, second):
        with first:
            with second:
                pass
    pair = [threading.Thread(target=work, args=order) for order in ((a, b), {second})]
    for worker in pair: worker.start()
    for worker in pair: worker.join(10)
    return not any(worker.is_alive() for worker in pair)
"""


@pytest.mark.parametrize(
    ("source", "call", "right"),
    [
        (COUNTER.format(body=LOCKED), {"function": "count", "args": [3, 4], "expect": 12}, True),
        (COUNTER.format(body="total[0] += 1"), {"function": "count", "args": [3, 4], "expect": 12}, False),
        (TASKS.format(body="pass"), {"function": "run", "expect": True}, True),
        (TASKS.format(body="await asyncio.sleep(5)"), {"function": "run", "expect": True}, False),
        (ONE_AT_A_TIME.format(second="(a, b)"), {"function": "run", "expect": True}, True),
        (ONE_AT_A_TIME.format(second="(b, a)"), {"function": "run", "expect": True}, False),
    ],
)
def test_a_race_is_judged_over_many_schedules_and_always_alike(judged, backend, workspace, source, call, right):
    verifier = code.create(code.Config(seconds=60.0), None, backend)
    reference = {"module": "m.py", "cases": [{**call, "schedules": 25}]}
    verdicts = [
        judged(verifier, reference, "", {"m.py": source.encode()}, sandbox=workspace, artifacts=("m.py",))
        for _ in range(2)
    ]
    assert {verdict.score for verdict in verdicts} == {float(right)}, verdicts[0].evidence
    assert len({str(verdict.evidence) for verdict in verdicts}) == 1


def test_visible_and_hidden_cases_are_told_apart(grade):
    cases = [{**CASES[0], "visible": True}, CASES[1]]
    overfit = grade("def f(x): return 4", {**REFERENCE, "cases": cases})
    assert (overfit.components["visible"], overfit.components["hidden"], overfit.score) == (1.0, 0.0, 0.0)
