"""QuixBugs (Lin et al., MIT): every corrected program passes its test cases, and every one with its bug fails some."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from temper.core.task import SandboxSpec, Task
from temper.core.trace import Segment, Trace, Verdict
from temper.sandboxes import local
from temper.verifiers import tests
from temper.verifiers.grading import grade

DATA = Path(__file__).parents[3] / "shared" / "data"
SLOW = ("6404180", "amanaplanacanalpanama")  # minutes, which QuixBugs' own tests skip
TEST = """
from m import {name}

def plain(value):
    simple = isinstance(value, (int, float, str, bool, type(None)))
    return value if simple else [plain(item) for item in value]

def near(a, b, by):
    if isinstance(a, float) or isinstance(b, float):
        return abs(a - b) <= by
    return a == b

def test_cases():
    for given, wanted in {cases}:
        assert near(plain({name}(*given)), plain(wanted), given[-1] if {name!r} == 'sqrt' else 1e-9)
"""


def verdicts(programs: list[tuple[str, str, list[object]]]) -> list[Verdict]:
    async def one(verifier: object, name: str, program: str, cases: list[object], room: asyncio.Semaphore) -> Verdict:
        test = TEST.format(name=name, cases=repr(cases))
        reference = {"tests": {"test_m.py": test}, "fail_to_pass": ["test_m.py::test_cases"]}
        spec = SandboxSpec(files={"m.py": b""})
        task = Task(id=name, domain="d", messages=(), reference=reference, sandbox=spec, artifacts=("m.py",))
        trace = Trace(id="t", task=name, domain="d", seed=0, segments=(Segment.given((), []),))
        async with room:
            return await grade(task, trace, {"m.py": program.encode()}, verifier)  # type: ignore[arg-type]

    async def every() -> list[Verdict]:
        backend, room = local.create(), asyncio.Semaphore(8)
        verifier = tests.create(tests.Config(seconds=20.0), None, backend)
        found = await asyncio.gather(*(one(verifier, *program, room) for program in programs))
        await backend.close()
        return found

    return asyncio.run(every())


@pytest.mark.outside
@pytest.mark.timeout(600)
def test_corrected_programs_pass_and_the_others_do_not() -> None:
    folder = next((path.parent for path in DATA.glob("**/json_testcases")), None)
    if folder is None:
        pytest.skip("QuixBugs is not there")
    names, programs = [], []
    for path in sorted((folder / "json_testcases").glob("*.json")):
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
        cases = [json.loads(line) for line in lines if not any(mark in line for mark in SLOW)]
        names.append(path.stem)
        programs += [(path.stem, (folder / kind / f"{path.stem}.py").read_text("utf-8"), cases)
                     for kind in ("correct_python_programs", "python_programs")]  # fmt: skip
    found = verdicts(programs)
    assert len(names) >= 30
    assert {name: v for name, v in zip(names, found[::2], strict=True) if v.score != 1.0} == {}
    assert {name: v for name, v in zip(names, found[1::2], strict=True) if v.score != 0.0} == {}
    assert {v.status for v in found} == {"graded"}
