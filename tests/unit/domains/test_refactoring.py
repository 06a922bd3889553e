import itertools

import pytest

from temper.core.task import Message, ToolCall
from temper.domains import refactoring

DOMAIN = refactoring.create()
DONE = Message("assistant", "done")


def calls(*made):
    return Message("assistant", calls=tuple(ToolCall(*call) for call in made))


def some(level, n=1, seed=0):
    return list(itertools.islice(DOMAIN.tasks("train", level, seed), n))


def about(level, words):
    return next(task for task in DOMAIN.tasks("train", level, 0) if words in task.messages[0].content)


def test_another_layout_of_the_same_refactoring_is_as_good(say):
    task = about(1, "Make")
    name = next(iter(task.reference["inputs"]))
    one = task.reference["solution"]["m.py"].replace("return ", "answer = ").rstrip()
    two_lines = f"{one}\n    return answer\n"
    assert say(DOMAIN, task, [calls(("write", {"text": two_lines})), DONE])[1].score == 0, "two statements"
    plain = f"{name} = lambda *a: None\n"
    assert say(DOMAIN, task, [calls(("write", {"text": plain})), DONE])[1].score == 0


def test_code_that_moves_the_metric_and_breaks_something_fails(say):
    for task in some(2, 4):
        path, text = next(iter(task.reference["solution"].items()))
        broken = text.replace("return ", "return not ", 1)
        _, verdict = say(DOMAIN, task, [calls(("write", {"path": path, "text": broken})), DONE])
        assert (verdict.score, verdict.components["goals"]) == (0.0, 1.0)
        assert verdict.components["behaviour"] < 1


@pytest.mark.parametrize("level", [2, 3])
def test_half_of_a_refactoring_fails(say, level):
    task = about(level, "Rename")
    path = list(task.sandbox.files)[-1]
    old = next(iter(task.reference["renamed"]))
    text = task.sandbox.files[path].decode().replace(f"def {old}", f"def {task.reference['renamed'][old]}")
    assert say(DOMAIN, task, [calls(("write", {"path": path, "text": text})), DONE])[1].score == 0


def test_files_are_read_and_wrong_paths_are_told(say):
    (task,) = some(3)
    tried = calls(
        ("read", {"path": "parts.py"}), ("read", {"path": "none.py"}), ("write", {"path": "../x", "text": ""})
    )
    outputs, _ = say(DOMAIN, task, [tried])
    assert outputs[0] == task.sandbox.files["parts.py"].decode()
    assert outputs[1] == "error: no file none.py"
    assert outputs[2].startswith("error: ../x cannot be written")
