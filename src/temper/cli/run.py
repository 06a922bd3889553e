"""`temper run`: a recipe from start to report, or a run that was interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from temper.cli import app
from temper.core.errors import ConfigError, CorruptError
from temper.core.protocols import Sink

EXAMPLES = """Examples:

  temper run quickstart
  temper run quickstart seed=3 evaluation.tasks=400 --name seed3
  temper run my.toml --dry-run
  temper run --resume runs/quickstart
  temper run --resume runs/quickstart stages.1.trainer.micro_tokens=4096
  torchrun --nproc-per-node 2 -m temper.cli run quickstart
"""


@app.command(epilog=EXAMPLES)
def run(
    recipe: Annotated[str, typer.Argument(help="Name of a shipped recipe, or path of a .toml file.")] = "",
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings like evaluation.tasks=40.")] = None,
    name: Annotated[str, typer.Option(help="Name of the run directory; the recipe's name by default.")] = "",
    root: Annotated[Path | None, typer.Option(help="Where run directories are; runs by default.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this directory.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved recipe and its estimated cost.")
    ] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Remove an older run of that name first.")
    ] = False,
) -> None:
    """Run a recipe: evaluate the base model, train it, evaluate it again, write a report."""
    from temper.runs import driver
    from temper.runs import recipe as recipes

    ranks = _ranks()
    if resume:
        unfit = {"--name": name, "--root": root, "--dry-run": dry_run, "--from-scratch": from_scratch}
        unfit[f"the recipe {recipe!r}"] = recipe and "=" not in recipe
        if given := [what for what, value in unfit.items() if value]:
            raise ConfigError(f"--resume goes on with the recipe in {resume}: leave out {', '.join(given)}")
        changes = [recipe, *(overrides or ())] if recipe else []
        path, work = resume, lambda sinks: driver.resume(resume, changes, sinks)
    else:
        if not recipe:
            raise ConfigError(f"expected a recipe: one of {', '.join(recipes.shipped())}, or a path to a .toml file")
        loaded = recipes.load(recipe, overrides or ())
        if dry_run:
            from temper.runs.estimate import estimate

            typer.echo(estimate(loaded))
            return
        path = place(root or Path("runs"), name or loaded.name)
        if from_scratch:
            remove(path)
        work = lambda sinks: driver.start(loaded, path, sinks)  # noqa: E731
    with ranks:
        perform(path, work)


def _ranks() -> AbstractContextManager[Any]:
    """The world that torchrun started, in which a rank above 0 stays until its end; nothing elsewhere."""
    if os.environ.get("WORLD_SIZE", "1") == "1":  # no torch then, until the recipe is found good
        return contextlib.nullcontext()
    if missing := {"RANK", "MASTER_ADDR", "MASTER_PORT"} - os.environ.keys():
        raise ConfigError(
            f"WORLD_SIZE says that there are several ranks, and {', '.join(sorted(missing))} not which: start them "
            "with torchrun, or unset WORLD_SIZE"
        )
    from temper.training.parallel import follower, world

    if follower.followed():
        raise typer.Exit
    return world.joined()


def perform(path: Path, work: Callable[[list[Sink]], Coroutine[Any, Any, Path]]) -> None:
    """Do what drives the run at `path`, show how far it is, and print its report; interrupted, say how it goes on."""
    from temper.cli.display import display

    with display(path) as sink:
        try:
            report = asyncio.run(_interruptible(work([sink])))
        except (KeyboardInterrupt, asyncio.CancelledError):
            quoted = shlex.quote(str(path))
            typer.secho(f"\nstopped; nothing finished is lost. Go on with: temper run --resume {quoted}", err=True)
            raise typer.Exit(130) from None
    typer.echo(report.with_suffix(".md").read_text("utf-8"))
    typer.echo(f"report: {report}")


def place(root: Path, name: str) -> Path:
    """The directory of a run of that name. Raises ConfigError where it would not lie in `root`."""
    if Path(name).name != name or name in ("", ".."):
        raise ConfigError(f"expected the name of one directory, got {name!r}: say where it is with --root")
    return root / name


def remove(path: Path) -> None:
    """Remove an older run, if there is one. Raises ConfigError for anything else, RefusedError while it runs."""
    from temper.store.disk import disk_errors
    from temper.store.run import RunDirectory

    if not path.exists():
        return
    if path.is_symlink() or not (path / "recipe.json").is_file():
        raise ConfigError(f"{path} is no run; only runs are removed: choose another name")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(CorruptError):  # a damaged one may go
            held.enter_context(RunDirectory.open(path))
        with disk_errors(path):
            shutil.rmtree(path)


async def _interruptible(work: Coroutine[Any, Any, Path]) -> Path:
    """Ctrl-C and SIGTERM cancel the run once, so that it closes cleanly."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    return await task
