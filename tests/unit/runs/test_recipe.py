"""Nonsense in a recipe is refused before anything runs, and a run that goes on keeps what its report says."""

import asyncio

import pytest

from temper.core.errors import ConfigError, MissingError
from temper.core.trace import Verdict
from temper.evaluation.outcome import Outcome
from temper.runs import driver
from temper.runs import recipe as recipes
from temper.store.run import RunDirectory


@pytest.mark.parametrize(
    "setting",
    [
        "verifier_workers=0",
        "seed=-1",
        "seed=99999999999999999999",
        "model.dtype=float7",
        "model.adapter.rank=0",
        "evaluation.sampling.max_tokens=0",
        "evaluation.sampling.temperature=-1",
        "evaluation.sampling.top_p=2",
        "evaluation.tasks=0",
        "evaluation.concurrency=0",
        "evaluation.examples=-1",
        "domains.0.share=0",
        "domains.0.share=nan",
        "stages.0.demonstrations=0",
        "stages.0.data.batch=0",
        "stages.0.trainer.lr=nan",
        "stages.0.trainer.lr=inf",
        "stages.0.trainer.lr=-1e-4",
        "stages.1.steps=0",
        "stages.1.window=-1",
        "stages.1.floor=0",
        "stages.1.floor=1.5",
        "stages.1.pacing.batch=0",
        "stages.1.pacing.group=0",
        "stages.1.pacing.batch=9",
        "budget.tokens=-1",
        "budget.seconds=nan",
        "prices.tokens=inf",
        "budget.money=5",
    ],
)
def test_nonsense_is_refused_by_the_name_of_its_setting(setting):
    key = setting.partition("=")[0].split(".")[-1]
    with pytest.raises(ConfigError, match=key if key not in ("tokens", "seconds") else "budget|prices"):
        recipes.load("smoke", [setting])


def test_an_engine_that_takes_no_base_model_is_for_workers_only():
    with pytest.raises(ConfigError, match=r"name it in workers\.model"):
        recipes.load("smoke", ["engine.kind=openai", "engine.base_url=http://127.0.0.1:9/v1", "engine.model=x"])


def test_several_tries_of_the_same_greedy_answer_are_refused():
    with pytest.raises(ConfigError, match=r"evaluation\.tries at temperature 0"):
        recipes.load("smoke", ["evaluation.tries=4"])
    assert recipes.load("smoke", ["evaluation.tries=4", "evaluation.sampling.temperature=1"]).evaluation.tries == 4


def test_a_run_that_cannot_be_taken_up_leaves_its_name_free_and_nothing_of_others_removed(tmp_path):
    recipe = recipes.load("smoke", ["model.base=./nosuch"])
    kept = tmp_path / "mine" / "work.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    for name in ("new", "mine"):
        with pytest.raises(MissingError, match="no model at"):
            asyncio.run(driver.start(recipe, tmp_path / name, []))
    assert not (tmp_path / "new").exists()
    assert kept.read_text() == "mine"


@pytest.mark.parametrize("moment", ["abc", "nan", "-1", "99999999999"])
def test_a_start_that_is_no_past_moment_is_named_before_anything_runs(moment, tmp_path, monkeypatch):
    monkeypatch.setenv("TEMPER_STARTED", moment)
    with pytest.raises(ConfigError, match=f"TEMPER_STARTED: expected a past moment .*{moment}"):
        asyncio.run(driver.start(recipes.load("smoke", ["unaudited=['arithmetic']"]), tmp_path / "new", []))
    assert not (tmp_path / "new").exists()


def test_an_unknown_key_of_a_budget_says_which_table():
    with pytest.raises(ConfigError, match="budget: unknown key 'foo'"):
        recipes.load("smoke", ["budget.foo=3"])


def test_a_table_of_a_plugin_without_kind_is_of_the_default_kind():
    found = recipes.load("smoke", ["engine.slots=8", "sandbox={}", "model.chat={}"])
    assert found.engine == {"kind": "torch", "slots": 8}
    assert (found.sandbox, found.model.chat) == ({"kind": "local"}, {"kind": "chatml"})


@pytest.fixture
def halfway(tmp_path):
    """A run that has evaluated the base model and finished its first stage of two."""
    path = tmp_path / "smoke"
    with RunDirectory.create(path, recipes.load("smoke")) as run:
        done = run.log("done", driver.Done)
        for what in ("evaluate-base", "sft"):
            done.append(driver.Done(what, 0))
        told = {"task": "t", "domain": "arithmetic", "level": 1, "stage": "base", "stop": "answer"}
        run.log("outcomes", Outcome).append(Outcome(**told, verdict=Verdict.ruled("graded", "t", "v", "")))
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("seed=5", "cannot change seed"),
        ("model.base=tiny:1", "cannot change model"),
        ("domains.0.level=2", "cannot change domains"),
        ("evaluation.tasks=9", "cannot change evaluation.tasks"),
        ("stages.0.data.batch=8", r"cannot change stages.0 \(sft, which is finished\)"),
        ("stages=[]", "stages.0"),
        ("stages.1.trainer.lr=nan", "lr"),
        ("stages.1.pacing.batch=0", "pacing.batch"),
        ("stages.1.bogus=1", "bogus"),
        ("engine.kind=bogus", "bogus"),
    ],
)
def test_a_run_that_goes_on_refuses_what_is_wrong_or_untrue_and_keeps_its_recipe(halfway, change, words):
    before = (halfway / "recipe.json").read_bytes()
    with pytest.raises(Exception, match=words) as raised:
        asyncio.run(driver.resume(halfway, [change], []))
    assert raised.value.exit_code in (2, 3)
    assert (halfway / "recipe.json").read_bytes() == before
    assert not list(RunDirectory.view(halfway).events)


def test_a_run_that_cannot_be_taken_up_with_its_changes_keeps_its_recipe(tmp_path):
    RunDirectory.create(tmp_path / "run", recipes.load("smoke", ["model.base=/nowhere"])).close()
    with pytest.raises(MissingError, match="/nowhere"):
        asyncio.run(driver.resume(tmp_path / "run", ["budget.tokens=9"], []))
    run = RunDirectory.view(tmp_path / "run")
    assert run.recipe["budget"] == {}
    assert "settings" not in {e.what for e in run.events}


FREE = "budget.tokens=9 engine.slots=8 evaluation.concurrency=2 stages.1.trainer.micro_tokens=4096 workers={}"


@pytest.mark.parametrize("change", FREE.split())
def test_limits_and_stages_to_come_can_change(change):
    before, after = recipes.load("smoke"), recipes.load("smoke", [change])
    recipes.check_change(before, after, {"sft"}, evaluated=True)


def test_before_the_first_outcome_the_evaluation_can_change_as_well():
    recipes.check_change(recipes.load("smoke"), recipes.load("smoke", ["evaluation.tasks=9"]), (), evaluated=False)
