import itertools

import pytest

from temper.core.task import Message, ToolCall
from temper.domains import terminal

DOMAIN = terminal.create()
DONE = Message("assistant", "done")


def sh(*commands):
    return Message("assistant", calls=tuple(ToolCall("sh", {"cmd": command}) for command in commands))


def some(level, n=1, seed=0):
    return list(itertools.islice(DOMAIN.tasks("train", level, seed), n))


@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_kind_of_job_is_solved_by_its_commands(level, say):
    for task in some(level, 8, seed=1):
        outputs, verdict = say(DOMAIN, task, [*DOMAIN.gold(task)])
        assert verdict.score == 1.0, (task.messages, outputs, verdict.evidence)


def test_other_commands_do_as_well(say):
    task = next(t for t in DOMAIN.tasks("train", 1, 0) if t.messages[0].content.startswith("Sort"))
    a, out = task.messages[0].content.removeprefix("Sort ").removesuffix(".").split(" into ")
    python = f"python3 -c \"import sys; print(*sorted(open('{a}').read().split(chr(10))[:-1]), sep=chr(10))\" > {out}"
    assert say(DOMAIN, task, [sh(python), DONE])[1].score == 1.0
    assert say(DOMAIN, task, [sh(f"sort {a} > {out}; rm {a}"), DONE])[1].score == 0.0
    assert say(DOMAIN, task, [sh(f"sort {a} > {out}; cp {out} {out}.bak"), DONE])[1].score == 0.0
    assert say(DOMAIN, task, [sh(f"sort -r {a} > {out}"), DONE])[1].score == 0.0


def test_a_shim_on_the_path_and_a_server_left_behind_change_nothing(say):
    """The listing is ours, started by name in an environment that the commands do not reach."""
    (task,) = some(1)
    shim = "mkdir bin; printf '#!/bin/sh\\necho {}' > bin/python3; chmod +x bin/python3; export PATH=$PWD/bin:$PATH"
    fake = "printf 'import sys; sys.exit(0)' > sitecustomize.py; cp sitecustomize.py json.py; (sleep 60 &)"
    assert say(DOMAIN, task, [sh(shim, fake), DONE])[1].score == 0.0


def test_hidden_runs_catch_a_script_for_one_input(say):
    task = next(t for t in DOMAIN.tasks("train", 3, 0) if "total" in t.reference["written"].values())
    path = next(iter(task.reference["written"]))
    shown = task.reference["scripts"][path][0]["stdout"]
    script = sh(*task.reference["commands"][:2], f"echo 'echo {shown}' > {path}")
    verdict = say(DOMAIN, task, [script, DONE])[1]
    assert (verdict.score, verdict.components["files"]) == (0.0, 1.0)


def test_a_command_that_fails_says_so(say):
    (task,) = some(1)
    outputs, verdict = say(DOMAIN, task, [sh("ls nowhere", "a\0b")])
    assert outputs[0].startswith("error: exit 2 ")
    assert outputs[1] == "error: a command holds no NUL"
    assert verdict.score == 0
