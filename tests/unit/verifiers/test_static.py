"""Files that are read and not run."""

from __future__ import annotations

import pytest

from temper.core.task import SandboxSpec
from temper.verifiers import static

OLD = b"import os\n\n\ndef f(x: int) -> int:\n    return x\n"


@pytest.fixture
def grade(judged, pool):
    def run(source, **settings):
        spec = SandboxSpec(files={"m.py": OLD})
        verifier = static.create(static.Config(**settings), pool)
        return judged(verifier, {"paths": ["m.py"]}, "", {"m.py": source.encode()}, sandbox=spec, artifacts=("m.py",))

    return run


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("def f(x: int) -> int:\n    return x\n", ""),
        (OLD.decode(), "nothing was changed"),
        ("import os\n\n\ndef f(x: int) -> int:\n    return x + 1\n", "line 1: m.py: F401"),
        ("import os  # noqa: F401\n\n\ndef f(x: int) -> int:\n    return x\n", "line 1: m.py: F401"),
        ("def f(x: int) -> int:\n    return y\n", "line 2: m.py: F821"),
        ("def f(x: int) -> int\n    return x\n", "m.py does not compile"),
        ("", "f is gone"),
        ("x = 1\0", "m.py does not compile"),
        (f"def f(x: int = 0x{'f' * 5000}) -> int:\n    return x\n", "the interface cannot be read: line 1: a number"),
    ],
)
def test_ruff_and_the_compiler(grade, source, why):
    verdict = grade(source)
    assert (verdict.status, verdict.score) == ("graded", float(not why))
    assert not why or verdict.evidence[0].text.startswith(why)


def test_old_findings_of_legacy_code_are_not_held_against_the_policy(grade):
    more = "import os\n\n\ndef f(x: int) -> int:\n    return x + 1\n"
    assert grade(more, legacy=True).score == 1.0
    assert grade(more.replace("import os", "import os\nimport re"), legacy=True).score == 0.0


@pytest.mark.nightly
def test_types(grade):
    pytest.importorskip("mypy", reason="types need mypy: pip install 'temper-rl[code]'")
    assert grade("def f(x: int) -> int:\n    return x + 1\n", types=True).score == 1.0
    wrong = grade("def f(x: int) -> int:\n    return str(x)\n", types=True)
    assert (wrong.score, wrong.components["types"]) == (0.0, 0.0)
    assert "Incompatible return value type" in wrong.evidence[0].text
    untyped = (
        "from typing import no_type_check\n\n\n@no_type_check\n",
        "import typing\n\nif not typing.TYPE_CHECKING:\n  ",
    )
    for opening in untyped:
        unseen = grade(f"{opening}def f(x: int) -> int: return str(x)\n", types=True)
        assert (unseen.score, unseen.components["types"]) == (0.0, 0.0), opening
    outcome, why = static.check({"my-package/__init__.py": "x: int = 1\n"}, {}, [], True, False)
    assert (outcome["types"], "mypy gave up" in why) == (0.0, True), why
    noted = grade("def f(x: int) -> int:\n    reveal_type(': error: ')\n    return x + 1\n", types=True, ruff=("E9",))
    assert noted.status == "graded", noted
    hushed = grade("def f(x: int) -> int:\n    return str(x)  # type: ignore\n", types=True)
    assert (hushed.score, hushed.evidence[0].text) == (0.0, "line 1: m.py: a comment tells mypy to look away")
