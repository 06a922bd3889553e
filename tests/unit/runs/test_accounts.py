"""A run's costs over several processes: counted once, held against the budget, the bottleneck said when it changes."""

import pytest

from temper.core.errors import BudgetError, ConfigError
from temper.core.trace import Cost, Event
from temper.runs import recipe as recipes
from temper.runs.accounts import Accounts
from temper.runs.recipe import DomainEntry, Recipe
from temper.scheduling.ledger import Spent
from temper.store.run import RunDirectory


def recipe(**more) -> Recipe:
    return Recipe(name="small", domains=(DomainEntry(kind="arithmetic"),), stages=(), **more)


class Desk:
    """Accounts of a run directory, on a clock that the test sets."""

    def __init__(self, run: RunDirectory, recipe: Recipe) -> None:
        self.now, self.events = 0.0, []
        self.accounts = Accounts(recipe, run, lambda *event, **_: self.events.append(event), lambda: self.now)


class Meter:
    """What an engine says it computed so far."""

    seconds = 0.0

    def busy(self):
        return {"decode": self.seconds}


def test_a_budget_holds_over_processes_and_a_larger_one_lets_the_run_go_on(tmp_path):
    tight = recipe(budget={"tokens": 100, "seconds": 60})
    with RunDirectory.create(tmp_path / "run", tight) as run:
        first = Desk(run, tight)
        first.accounts.spend(Cost(tokens_in=60), "arithmetic")
        first.accounts.afford()
        run.events.append(Event(when=50.0, what="process"))
    with RunDirectory.open(tmp_path / "run") as run:
        second = Desk(run, tight)
        second.accounts.spend(Cost(tokens_out=40), "arithmetic")
        second.now = 10.0
        second.accounts.afford()
        second.now = 10.1
        with pytest.raises(BudgetError, match=r"seconds: 60\.1 of 60 spent.*--resume .*run budget\.seconds="):
            second.accounts.afford()
        second.accounts.spend(Cost(tokens_out=1), "arithmetic")
        with pytest.raises(BudgetError, match="tokens: 101 of 100 spent"):
            Desk(run, tight).accounts.afford()
        Desk(run, recipe(budget={"tokens": 101, "seconds": 61})).accounts.afford()


def test_what_the_engine_was_busy_is_counted_once_and_in_its_part(tmp_path):
    with RunDirectory.create(tmp_path / "run", recipe()) as run:
        desk, meter = Desk(run, recipe()), Meter()
        desk.accounts.meters = (object(), meter)
        for part, busy in (("evaluate-base", 4.0), ("evaluate-base", 5.0), ("rl", 7.5)):
            desk.accounts.begin(part)
            meter.seconds = busy
            desk.accounts.spend(Cost(decode=100.0), "arithmetic")
        assert desk.accounts.part.stage("decode") == 2.5
        stored = [(one.part, one.measured["decode"]) for one in run.log("spent", Spent)]
        assert stored == [("evaluate-base", 4.0), ("evaluate-base", 1.0), ("rl", 2.5)]


def test_the_bottleneck_is_said_when_it_changes(tmp_path):
    with RunDirectory.create(tmp_path / "run", recipe()) as run:
        desk = Desk(run, recipe())
        desk.accounts.workers = {"gradient": 1, "verification": 2}
        desk.accounts.begin("rl")
        for seconds, gradient, verify in ((10, 9, 1), (20, 9, 1), (60, 2, 70)):
            desk.now = seconds
            desk.accounts.spend(Cost(gradient=gradient, verify=verify), "arithmetic")
            desk.accounts.advise()
        said = [why for what, _, why in desk.events if what == "bottleneck"]
        assert [words.split(" is ")[0] for words in said] == ["gradient", "verification"]


def test_a_recipe_that_limits_something_unknown_is_refused(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text('name = "small"\nstages = []\ndomains = [{ kind = "arithmetic" }]\n[budget]\ntoken = 5\n')
    with pytest.raises(ConfigError, match=r"'token'.*tokens"):
        recipes.load(str(path))
    assert recipes.load(str(path), ["budget={verify=5}", "prices={tokens=0.1}"]).budget == {"verify": 5.0}
