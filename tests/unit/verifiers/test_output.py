"""Programs by what they print."""

from __future__ import annotations

import asyncio

import pytest

from temper.sandboxes import local
from temper.verifiers import output

RUNS = [
    {"stdin": "3\n4\n", "stdout": "7\n"},
    {"args": ["-v"], "stdin": "1\n1\n", "stdout": "sum\n2"},
    {"stdin": "", "stdout": "", "code": 3},
]
GOOD = """
import sys
lines = sys.stdin.read().split()
if not lines: sys.exit(3)
if "-v" in sys.argv: print("sum  ")
print(sum(map(int, lines)))
"""


@pytest.fixture(scope="module")
def backend(loop):
    backend = local.create()
    yield backend
    asyncio.run_coroutine_threadsafe(backend.close(), loop).result()


@pytest.fixture
def grade(judged, backend):
    def run(source, runs=RUNS, **settings):
        verifier = output.create(output.Config(seconds=3.0, **settings), None, backend)
        return judged(verifier, {"path": "m.py", "runs": runs}, "", {"m.py": source.encode()}, artifacts=("m.py",))

    return run


def test_what_is_printed_and_the_exit_status_count(grade):
    assert grade(GOOD).score == 1.0
    wrong = grade(GOOD.replace("sys.exit(3)", "sys.exit(0)"))
    assert wrong.evidence[0].text == "m.py exited with 0, expected an exit with 3"
    assert wrong.components == {"passed": pytest.approx(2 / 3)}
    assert grade("print(7)").score == 0.0


@pytest.mark.parametrize(
    ("expected", "got", "compare", "right"),
    [
        ("a\nb\n", "a \nb", "lines", True),
        ("a\nb\n", "a\n\nb", "lines", False),
        ("a\nb\n", "a\nb", "exact", False),
        ("1.0 x", "1.0000000001\nx", "words", True),
        ("1.0 x", "1.1 x", "words", False),
        ("1 2", "1 2 3", "words", False),
        ("nan", "1", "words", False),
        ("10", "1_0", "words", False),
    ],
)
def test_ways_to_compare(expected, got, compare, right):
    assert output.matches(expected, got, compare, 1e-9) == right


def test_a_run_knows_nothing_of_the_others_and_a_silent_reference_is_refused(grade):
    """Each run has a box of its own."""
    keeps = "import os\nprint('seen' if os.path.exists('mark') else 'new')\nopen('mark', 'w').close()\n"
    assert grade(keeps, [{"stdout": "new"}, {"stdout": "new"}]).score == 1.0
    assert grade(GOOD, [{"stdout": " "}]).why == "reference-missing"
    assert grade("while True: pass").why == "deadline"
