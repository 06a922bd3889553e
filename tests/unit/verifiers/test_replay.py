"""What a run recorded, played again: verdicts are added where the verifier changed, and paid oddities are tried out."""

from __future__ import annotations

import asyncio
import sys
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from temper.core import registry
from temper.core.errors import ConfigError
from temper.core.task import Message
from temper.core.trace import Segment, Trace, Verdict
from temper.store.run import RunDirectory
from temper.verifiers.audit import samples
from temper.verifiers.audit.bench import opened
from temper.verifiers.audit.replay import harvest, mine, regrade

sys.path.insert(0, str(Path(__file__).parent))  # the plugins in `audited`


@pytest.fixture
def words(copied) -> str:
    return copied("audited.words")


@pytest.fixture
def record(tmp_path, words):
    """record(flaw, answers, verifier): a run in which these answers to the first tasks were paid."""

    def write(flaw: str, answers: list[str], verifier: str = "an older one") -> RunDirectory:
        settings = {"verifier": "audited.flawed", "flaw": flaw}
        run = RunDirectory.create(
            tmp_path,
            {
                "seed": 0,
                "model": {"base": "tiny:"},
                "domains": [{"kind": words, "level": 1, "settings": settings}],
            },
        )
        module, config = registry.configure("domains", {"kind": words, **settings})
        for n, task in enumerate(islice(module.create(config).tasks("train", 1), len(answers))):
            prompt = Segment.given((Message("user", "a worked example"), *task.messages), [1, 2])
            blank = {key: np.zeros(1) for key in ("ids", "trainable", "logprobs", "versions")}
            said = Segment(parent=0, author="policy", messages=(Message("assistant", answers[n]),), **blank)
            run.traces.append(
                Trace(id=f"t{n}", task=task.id, domain=words, seed=0, segments=(prompt, said), stop="answer")
            )
            run.verdicts.append(Verdict.ruled("graded", f"t{n}", verifier, score=1.0))
        return run

    return write


def test_rollouts_are_regraded_by_a_new_verifier_and_flips_are_told(record):
    with record("none", ["baaah", "Yes", "baach"]) as run:  # the words of tasks 0, and of 2
        done = asyncio.run(regrade(run))
        assert (done.regraded, done.current, done.changed, done.lost) == (3, 0, 0, 0)
        assert [(flip.trace, flip.before, flip.after) for flip in done.flips] == [("t1", 1.0, 0.0)]
        verdicts = [v for v in run.verdicts if v.trace == "t1"]
        assert [v.score for v in verdicts] == [1.0, 0.0], "added, and not rewritten"
        assert asyncio.run(regrade(run)).current == 3, "a second time there is nothing to do"


def test_a_rollout_whose_task_is_gone_is_counted_and_left(record, words):
    with record("none", ["Yes"]) as run:
        run.traces.append(Trace(id="gone", task="no such task", domain=words, seed=0))
        run.verdicts.append(Verdict.ruled("graded", "gone", "old", score=1.0))
        assert asyncio.run(regrade(run)).lost == 1


@pytest.mark.parametrize(("answers", "counts"), [(lambda text: text, (1, 0)), (lambda text: f"not {text}", (0, 1))])
def test_a_rollout_is_regraded_only_where_its_tools_answer_as_they_did(tmp_path, answers, counts):
    domain = registry.find("domains", "tools").create()
    task = next(t for t in domain.tasks("train", 1) if len(domain.gold(t)) > 2)  # looks something up first

    async def played():
        async with opened(domain) as bench:
            return (await bench.play(task, domain.gold(task)))[0].messages()

    segments = []
    for message in asyncio.run(played()):
        blank = Segment.given((message,), [], parent=len(segments) - 1)
        if message.role == "tool":
            blank = replace(blank, messages=(replace(message, content=answers(message.content)),))
        segments.append(replace(blank, author="policy") if message.role == "assistant" else blank)
    entry = {"kind": "tools", "level": 1, "settings": {}}
    with RunDirectory.create(tmp_path, {"seed": 0, "model": {"base": "tiny:"}, "domains": [entry]}) as run:
        run.traces.append(Trace(id="t", task=task.id, domain="tools", seed=0, segments=tuple(segments)))
        run.verdicts.append(Verdict.ruled("graded", "t", "an older one", score=0.0))
        done = asyncio.run(regrade(run))
    assert (done.regraded, done.changed) == counts
    assert [flip.after for flip in done.flips] == [1.0] * counts[0]


@pytest.mark.parametrize("use", [regrade, mine, lambda run: harvest(run, most=1)])
@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({"model": {}}, "missing required field `domains`"),
        (
            {"model": {}, "domains": [{"level": 1}]},
            r"recipe.json: domains\[.+\]: Object missing required field `kind`",
        ),
        ({"model": {}, "domains": [], "seed": "zero"}, "recipe.json: seed: Expected `int`, got `str`"),
    ],
)
def test_a_recipe_that_is_damaged_is_named_with_what_is_wrong(use, recipe, said, tmp_path):
    with RunDirectory.create(tmp_path, recipe) as run, pytest.raises(ConfigError, match=said):
        asyncio.run(use(run))


def test_the_same_words_paid_on_several_tasks_are_a_candidate_and_paid_elsewhere_an_attack(record):
    with record("any text", ["Yes", "Yes", "Yes", "baadh"]) as run:
        found = asyncio.run(mine(run))
    assert {c.trace for c in found} == {"t0", "t1", "t2"}
    assert all(c.paid_on == c.tried > 0 for c in found)
    assert "paid on 3 tasks" in found[0].signs[0]


def test_an_odd_success_that_is_paid_only_where_it_is_right_is_no_attack(record):
    with record("none", ["baaah", "conftest.py"]) as run:
        found = asyncio.run(mine(run))
    assert [(c.trace, c.paid_on) for c in found] == [("t1", 0)]
    assert msgspec.json.decode(msgspec.json.encode(found))[0]["signs"] == ["says 'conftest'"]


def test_rollouts_that_a_second_rule_can_judge_are_kept_as_known_answers(record, words):
    with record("none", ["baaah", "Yes", "baach?", "baadh"]) as run:
        assert sum(asyncio.run(harvest(run, most=1)).values()) == 2, "one right, one wrong"
        assert sum(asyncio.run(harvest(run, most=10)).values()) == 3
        assert sum(asyncio.run(harvest(run, most=10)).values()) == 3, "the same answers count once"
    module = registry.find("domains", words)
    kept = {case.answer: (task.id, case.right, case.source) for task, case in samples.load(module, module.create())}
    assert kept["Yes"] == ("words-train-1", False, "sample")
    assert kept["baaah"][1:] == (True, "sample")
