import itertools

import pytest

from temper.core.task import Message, ToolCall
from temper.domains import code_repair

DOMAIN = code_repair.create()
TEST = ("test", {})


def calls(*made):
    return Message("assistant", calls=tuple(ToolCall(*call) for call in made))


def some(level, n=1, seed=0):
    return list(itertools.islice(DOMAIN.tasks("train", level, seed), n))


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_visible_test_fails_first_and_says_how(level, say):
    for task in some(level, 3):
        outputs, verdict = say(DOMAIN, task, [calls(TEST)])
        name = task.reference["cases"][0]["function"]
        assert outputs[0].startswith(f"{name}(")
        assert " gave " in outputs[0]
        assert " want " in outputs[0]
        assert verdict.score == 0


def test_a_special_case_for_the_visible_test_fails(say):
    """What the failing test shows, returned for its arguments alone."""
    for task in some(1, 5):
        outputs, _ = say(DOMAIN, task, [calls(TEST)])
        shown, want = outputs[0].partition(" gave ")[0], outputs[0].rpartition(" want ")[2]
        arguments = shown.partition("(")[2][:-1]
        head, body = task.sandbox.files["m.py"].decode().rstrip().split("\n")
        parameters = head.partition("(")[2][:-2]
        wrong = body.strip()
        special = f"return {want} if ({parameters},) == ({arguments},) else {wrong.removeprefix('return ')}"
        outputs, verdict = say(DOMAIN, task, [calls(("edit", {"old": wrong, "new": special}), TEST)])
        assert outputs[0] == "ok"
        only_there = all(case["args"] == list(eval(f"({arguments},)")) for case in task.reference["cases"])
        assert verdict.score == float(only_there)


def test_an_answer_that_leaves_the_test_early_fails(say):
    (task,) = some(1)
    body = task.sandbox.files["m.py"].decode().rstrip().split("\n")[1].strip()
    cheat = calls(("edit", {"old": body, "new": 'print("pass"); import os; os._exit(0)'}), TEST)
    _, verdict = say(DOMAIN, task, [cheat])
    assert verdict.score == 0


def test_wrong_edits_say_why(say):
    (task,) = some(2)
    tried = calls(
        ("edit", {"path": "m.py", "old": "return", "new": "x"}),
        ("edit", {"path": "m.py", "old": "", "new": "x"}),
        ("edit", {"path": "none.py", "old": "a", "new": "b"}),
        ("read", {"path": "../../etc/passwd"}),
    )
    outputs, _ = say(DOMAIN, task, [tried])
    assert outputs[0].startswith("error: old occurs ")
    assert outputs[1:3] == ["error: old occurs 0 times, not once", "error: no file none.py"]
    assert outputs[3].startswith("error: ")


def test_a_syntax_error_is_shown_in_one_line(say):
    (task,) = some(1)
    body = task.sandbox.files["m.py"].decode().rstrip().split("\n")[1].strip()
    outputs, _ = say(DOMAIN, task, [calls(("edit", {"old": body, "new": "return )"}), TEST)])
    assert outputs[1] == "SyntaxError: unmatched ')'"
