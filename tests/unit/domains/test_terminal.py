import itertools
import random
import re

import pytest

from temper.core.task import Message, ToolCall
from temper.domains import terminal
from temper.domains.generated import split_of
from temper.domains.terminal import jobs

DOMAIN = terminal.create()
DONE = Message("assistant", "done")


def sh(*commands):
    return Message("assistant", calls=tuple(ToolCall("sh", {"cmd": command}) for command in commands))


def some(level, n=1, seed=0):
    return list(itertools.islice(DOMAIN.tasks("train", level, seed), n))


@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_kind_of_job_is_solved_by_its_commands(level, say):
    for task in some(level, 40, seed=1):
        outputs, verdict = say(DOMAIN, task, [*DOMAIN.gold(task)])
        assert verdict.score == 1.0, (task.messages, outputs, verdict.evidence)


def masked(commands):
    """Commands without what is surface: names of files and folders, and the words that stand in them."""
    surface = "|".join([*jobs._FILES, *jobs._FOLDERS, *jobs.filters.NAMES, *jobs.filters.KINDS, *jobs.filters.COLOURS])
    return tuple(sorted(re.sub(rf"\b({surface})\b", "_", command) for command in commands))


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_heldout_job_is_no_training_job_under_other_names(level):
    found = {
        split: {
            masked(t.reference["commands"])
            for seed in range(2)
            for t in itertools.islice(DOMAIN.tasks(split, level, seed), n)
        }
        for split, n in (("train", 600), ("heldout", 300))
    }
    assert not found["train"] & found["heldout"]


@pytest.mark.parametrize(("level", "draws"), [(1, 8000), (2, 3000), (3, 2000)])
def test_there_are_hundreds_of_jobs_on_either_side(level, draws):
    rng = random.Random(0)
    found = {terminal.draw(rng, level).identity for _ in range(draws)}
    sides = [split_of(f"terminal/{identity}") for identity in found]
    assert min(sides.count("train"), sides.count("heldout")) >= 300


def asked(task):
    return task.messages[0].content


def test_other_commands_do_as_well(say):
    pattern = re.compile(r"From (\S+) into (\S+): sort the lines\.")
    task = next(
        t
        for t in itertools.chain(DOMAIN.tasks("train", 1, 0), DOMAIN.tasks("heldout", 1, 0))
        if pattern.match(asked(t))
    )
    a, out = pattern.match(asked(task)).groups()
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
