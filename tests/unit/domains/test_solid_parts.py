"""3D parts: known answers are graded as they are known. The scripts are the domain's own, and run in this process."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from temper.core.task import Task
from temper.domains import solid_parts
from temper.domains.solid_parts import families
from temper.verifiers.checks import solids
from temper.verifiers.geometry import Reference

pytest.importorskip("manifold3d", reason="solid_parts needs the extra cad")
pytest.importorskip("trimesh", reason="solid_parts needs the extra cad")

FAMILIES = [(level, n) for level in solid_parts.LEVELS for n in range(len(families.FAMILIES[level]))]


def drawn(level: int, n: int, seed: int) -> Task:
    """A task of one family."""
    rng = random.Random(seed)
    while True:
        state = rng.getstate()
        if rng.choice(range(len(families.FAMILIES[level]))) == n:
            rng.setstate(state)
            return solid_parts.draw(rng, level).build(rng)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "stl.py").write_bytes(solid_parts.SANDBOX.files["stl.py"])

    def run(script: str) -> bytes | None:
        Path("part.stl").unlink(missing_ok=True)
        try:
            exec(compile(script, "part.py", "exec"), {"__name__": "__main__"})
        except SystemExit as end:
            if end.code:
                return None
        return Path("part.stl").read_bytes() if Path("part.stl").exists() else None

    return run


def wanted(task: Task) -> dict[str, Any]:
    return msgspec.to_builtins(msgspec.convert(task.reference, Reference))


def graded(task: Task, made: Any, some: int | None = None) -> None:
    """The known answers of a task (or so many of them, drawn by its id) get their grades."""
    gold, cases = made(task.reference["script"]), list(solid_parts.SolidParts().cases(task))
    for case in cases if some is None else random.Random(task.messages[0].content).sample(cases, some):
        mesh = made(case.artifacts["part.py"].decode())
        found, why, _ = solids.check(mesh, gold, "stl", wanted(task)) if mesh is not None else ("wrong", "none", {})
        assert (found == "right") == case.right, (case.why, why, task.messages[0].content)


@pytest.mark.parametrize(("level", "n"), FAMILIES)
def test_some_known_answers_get_their_grades(level, n, made):
    graded(drawn(level, n, seed=n), made, some=4)


@pytest.mark.nightly
@pytest.mark.parametrize(("level", "n"), FAMILIES)
def test_all_known_answers_get_their_grades(level, n, made):
    graded(drawn(level, n, seed=n + 100), made)


@pytest.mark.parametrize(("level", "n"), FAMILIES)
def test_gold_parts_are_as_the_families_say(level, n, made):
    """Volume, box and genus are worked out from the sizes by hand; the mesh comes from a geometry kernel."""
    task = drawn(level, n, seed=11)
    gold = made(task.reference["script"])
    found, why, _ = solids.check(gold, gold, "stl", wanted(task))
    assert found == "right", (why, task.reference)
