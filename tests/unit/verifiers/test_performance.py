"""Speed as a ratio of CPU time, which neither patched clocks nor other processes move."""

from __future__ import annotations

import asyncio

import pytest

from temper.core.task import SandboxSpec
from temper.sandboxes import local
from temper.verifiers import performance

SOLUTION = "def f(xs):\n    seen = set()\n    return [x for x in xs if not (x in seen or seen.add(x))]\n"
REFERENCE = {
    "module": "m.py",
    "function": "f",
    "calls": [[[n * 7919 % 3001 for n in range(3000)]]],
    "solution": {"m.py": SOLUTION},
}
LINEAR = "def f(xs):\n    return list(dict.fromkeys(xs))\n"
QUADRATIC = "def f(xs):\n    out = []\n    for x in xs:\n        if x not in out: out.append(x)\n    return out\n"


@pytest.fixture(scope="module")
def backend(loop):
    backend = local.create()
    yield backend
    asyncio.run_coroutine_threadsafe(backend.close(), loop).result()


@pytest.fixture
def grade(judged, backend):
    def run(source, reference=REFERENCE):
        verifier = performance.create(performance.Config(seconds=10.0), None, backend)
        spec = SandboxSpec(files={"m.py": b""})
        return judged(verifier, reference, "", {"m.py": source.encode()}, sandbox=spec, artifacts=("m.py",))

    return run


def test_linear_is_fast_enough_and_quadratic_is_not(grade):
    assert grade(SOLUTION).score == 1.0
    assert grade(LINEAR).score == 1.0
    slow = grade(QUADRATIC)
    assert (slow.score, slow.components) == (0.0, {"correct": 1.0, "fast": 0.0})
    assert slow.evidence[0].text == "f took more than 3 times the CPU time of the solution"


@pytest.mark.parametrize(
    "source",
    [
        f"import time\ntime.process_time = time.perf_counter = time.clock_gettime = lambda *a: 0.0\n{QUADRATIC}",
        QUADRATIC + "import atexit, os\nslow = f\ndef f(xs):\n    return slow(xs) if os.getpid() else []\n",
        "def f(xs): return xs[:0]\n",
        "import os\nos._exit(0)\n",
        QUADRATIC.replace("def f", "def slow")
        + "import os, json\ndef f(xs):\n    r, w = os.pipe()\n    if os.fork() == 0:\n"
        "        os.write(w, json.dumps(slow(xs)).encode()); os._exit(0)\n    os.close(w)\n"
        "    return json.loads(os.fdopen(r).read())\n",
        "import os\nfor pid in range(os.getppid() + 1, os.getpid() + 9):\n"
        "    try: os.kill(pid, 9 * (pid != os.getpid()))\n    except OSError: pass\ndef f(xs): return []\n",
    ],
    ids=["patched clocks", "wrapped", "wrong", "exit", "work handed to a child", "ends its neighbours"],
)
def test_tricks_do_not_pass(grade, source):
    verdict = grade(source)
    assert (verdict.status, verdict.score) == ("graded", 0.0)


def test_a_solution_that_fails_is_the_tasks_fault(grade):
    assert grade(LINEAR, {**REFERENCE, "solution": {"m.py": "def f(xs): return 1 / 0\n"}}).why == "gold-fails"
    assert grade(LINEAR, {**REFERENCE, "solution": {}}).why == "reference-missing"
