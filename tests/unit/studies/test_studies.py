"""The studies of `benchmarks/studies`: their recipes resolve, and their figures follow from what runs have stored."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path

import pytest

from temper.evaluation.statistics import Interval
from temper.runs import recipe as recipes
from temper.store.run import Metrics, RunDirectory

STUDIES = Path(__file__).parents[3] / "benchmarks" / "studies"


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(str(STUDIES))
    yield
    for name in [
        n for n in sys.modules if n.partition(".")[0] in ("runs", "variants", "asynchrony", "saving", "transfer")
    ]:
        del sys.modules[name]


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_recipes_resolve(path):
    assert recipes.load(str(path)).domains


def test_every_arm_of_the_study_of_asynchrony_resolves_to_another_recipe():
    asynchrony = importlib.import_module("asynchrony")
    loaded = {arm: recipes.load(str(STUDIES / "asynchrony.toml"), given) for arm, given in asynchrony.ARMS.items()}
    stages = [str(recipe.stages[0]) for recipe in loaded.values()]
    assert len(set(stages)) == len(stages)


def arm(mean, low, speed):
    return {"against_synchronous": Interval(mean, low, mean, 400), "speed": [0.0, speed, 9.0]}


def test_the_fastest_arm_that_surely_loses_little_is_recommended():
    asynchrony = importlib.import_module("asynchrony")
    rows = {
        "synchronous": arm(0.0, 0.0, 1.0),
        "safe": arm(0.0, -0.02, 1.5),
        "unsure": arm(0.01, -0.05, 1.7),
        "worse": arm(-0.1, -0.12, 2.0),
    }
    assert asynchrony.recommended(rows) == "safe"
    assert asynchrony.recommended({"worse": rows["worse"]}) == "synchronous"


def run_with(path, useful, tokens):
    """A run whose steps had so many useful groups of ten, and sampled so many tokens of 40 answers each."""
    with RunDirectory.create(path, {"name": path.name}) as run:
        for step, (groups, spent) in enumerate(zip(useful, tokens, strict=True), 1):
            values = {"groups": 10.0, "groups_without_gradient": 10.0 - groups, "samples": 40.0}
            run.metrics.append(Metrics(step, "rl", values | {"answer_tokens": spent / 40}))
    return RunDirectory.view(path)


def test_tokens_are_compared_at_as_many_useful_groups_as_both_have(tmp_path):
    saving = importlib.import_module("saving")
    uniform = run_with(tmp_path / "uniform", [2, 2, 2, 0], [400, 400, 400, 400])
    chosen = run_with(tmp_path / "chosen", [2, 4, 8], [400, 400, 400])
    groups, tokens = saving.spent(chosen)
    assert groups.tolist() == [0, 2, 6, 14]
    assert tokens.tolist() == [0, 400, 800, 1200]
    found = saving.used(uniform, chosen)
    assert found["useful_groups"] == 6
    assert (found["tokens_uniform"], found["tokens_chosen"]) == (1200, 800)
    assert found["saved"] == pytest.approx(1 / 3)
    every = saving.interval([(uniform, chosen)])  # 200 tokens a useful group, against 200 and 100
    assert (every.mean, every.low, every.high) == pytest.approx((1 / 3, 0, 1 / 2))


def test_leaves_become_the_domains_of_a_recipe():
    transfer = importlib.import_module("transfer")
    given = [f"domains={transfer.domains(['arithmetic@2', 'sql@1'])}"]
    loaded = recipes.load(str(STUDIES / "transfer.toml"), given)
    assert [(d.kind, d.level) for d in loaded.domains] == [("arithmetic", 2), ("sql", 1)]


def test_words_of_mixed_length_never_read_the_same_both_ways():
    domain = importlib.import_module("variants.mixed_reverse").create()
    golds = [domain.gold(task)[0].content for task in itertools.islice(domain.tasks("train", 1), 500)]
    assert {len(gold) for gold in golds} == {4, 6, 8, 10}
    assert not any(gold == gold[::-1] for gold in golds)
