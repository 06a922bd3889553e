"""From recipe to report: evaluate the base, run each stage, evaluate again; a resumed run skips what is done."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from temper.core import config, registry
from temper.core.errors import ConfigError, CorruptError, TemperError
from temper.core.protocols import Sink
from temper.evaluation import scorecard
from temper.evaluation.diagnosis import diagnosis, elapsed, spending
from temper.evaluation.outcome import Outcome
from temper.evaluation.sections import page
from temper.runs.assess import assess
from temper.runs.fitting import measures
from temper.runs.recipe import Recipe, check, check_change, exceptions
from temper.store.run import RunDirectory

if TYPE_CHECKING:
    from temper.runs.workshop import Workshop


class Done(Struct, frozen=True):
    """A part of the run that need not be done again, and the version of the weights after it."""

    what: str
    version: int


async def start(recipe: Recipe, path: Path, sinks: list[Sink]) -> Path:
    """Run `recipe` in the new directory `path`; gives the path of report.json.

    Where it could not be taken up (no such model, say) the directory is removed again, so that its name is free.
    """
    new = not path.exists()
    with RunDirectory.create(path, recipe) as run:
        try:
            return await _go(recipe, run, sinks)
        except TemperError:
            if new and not any(event.what == "process" for event in run.events):
                shutil.rmtree(path)
            raise


async def resume(path: Path, overrides: Sequence[str], sinks: list[Sink]) -> Path:
    """Go on with a run that was stopped or killed, with settings changed where it needs them; recipe.json says so.

    Raises ConfigError, and changes nothing, where the settings are wrong or would make the report untrue.
    """
    with RunDirectory.open(path) as run:
        where = str(path / "recipe.json")
        recipe = config.build(Recipe, config.apply(run.recipe, overrides), where)
        if overrides:
            done = {d.what for d in run.log("done", Done)}
            evaluated = any(True for _ in run.log("outcomes", Outcome))
            check_change(config.build(Recipe, run.recipe, where), recipe, done, evaluated)
            check(recipe)
        return await _go(recipe, run, sinks, " ".join(overrides))


async def _go(recipe: Recipe, run: RunDirectory, sinks: list[Sink], changes: str = "") -> Path:
    began = time.time()
    installed = began - _started(began)
    with contextlib.ExitStack() as stack:
        for table in recipe.sinks:
            module, settings = registry.configure("store.sinks", table)
            sinks = [*sinks, stack.enter_context(contextlib.closing(module.create(settings, run)))]
        return await _stages(recipe, run, sinks, installed, changes)


def _started(now: float) -> float:
    """When the first command began of those that installed us and began the run, as `make` says."""
    given = os.environ.get("TEMPER_STARTED") or now
    try:
        started = float(given)
    except ValueError:
        started = math.nan
    if not 0 < started <= now:
        raise ConfigError(
            f"TEMPER_STARTED: expected a past moment in seconds since 1970, as of `date +%s`, got {given!r}; unset it"
        )
    return started


async def _stages(recipe: Recipe, run: RunDirectory, sinks: list[Sink], installed: float, changes: str) -> Path:
    from temper.runs.workshop import opened  # which loads torch: what is wrong with a recipe is said before

    async with opened(recipe, run, sinks) as shop:
        shop.event("process", str(os.getpid()), "took up the run", seconds_before=installed)
        if changes:  # only now: with what could not be taken up, the old recipe stays
            run.write("recipe.json", config.dump(recipe))
            shop.event("settings", run.path.name, changes)
        await _part(shop, "evaluate-base", partial(assess, shop, "base", recipe.evaluation.examples))
        for table in recipe.stages:
            module, settings = registry.configure("runs.stages", table)
            beside = getattr(module, "beside", False)
            await _part(shop, table["kind"], partial(module.run, shop, settings), trains=not beside)
            if beside:
                continue
            await _part(shop, f"evaluate-{table['kind']}", partial(assess, shop, table["kind"]))
        shop.event("finished", recipe.name)
        _report(shop)
        return run.path / "report.json"


async def _part(shop: Workshop, what: str, work: Callable[[], Awaitable[None]], trains: bool = False) -> None:
    log = shop.run.log("done", Done)
    before = next((d for d in log if d.what == what), None)
    if before:
        if trains:
            await _adopt(shop, before)
        return
    shop.accounts.begin(what)
    shop.event("part", what, "started")
    try:
        await work()
    except BaseException as error:
        shop.event("stopped", what, str(error) or "interrupted")
        raise
    log.append(Done(what, shop.version))
    shop.event("part", what, "finished")


async def _adopt(shop: Workshop, stage: Done) -> None:
    """Take over the weights of a stage that an earlier process finished."""
    from temper.models import scalar
    from temper.training import trainer

    folder = shop.latest(stage.what)
    if folder is None:
        raise CorruptError(
            f"stage {stage.what} of {shop.run.path} is done, but no checkpoint of it is whole: run it anew"
        )
    settings = trainer.Config(scalar=(folder / "trainer" / scalar.HEAD).exists())
    await shop.computed(trainer.Trainer(shop.policy, settings).load, folder / "trainer")
    await shop.publish(stage.version)


def _report(shop: Workshop) -> None:
    recipe, run = shop.recipe, shop.run
    facts = scorecard.Facts(
        name=recipe.name,
        model=recipe.model.base,
        commit=commit(),
        wall_s=sum(elapsed(run.events).values()),
        examples=recipe.evaluation.examples,
        unaudited=exceptions(recipe),
        settings={"seed": recipe.seed},
        measures=measures(run),
        spent=spending(run),
        alarms=tuple(f"{e.whom}: {e.why}" for e in run.events if e.what == "alarm"),
    )
    scorecard.write(run, list(run.log("outcomes", Outcome)), facts)
    run.write("why.html", page(recipe.name, diagnosis(run)))


def commit() -> str:
    """The checkout that this package runs from, "" where it is installed: that may be in somebody else's."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return ""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=root)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip()
