"""`temper eval`: success of a model on held-out tasks, without training anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from temper.cli import app
from temper.core.errors import ConfigError

EXAMPLES = """Examples:

  temper eval quickstart
  temper eval quickstart evaluation.tasks=40 model.base=tiny: --name tiny
  temper eval quickstart evaluation.tries=8 evaluation.sampling.temperature=1   (also pass@2, 4 and 8)
"""


@app.command("eval", epilog=EXAMPLES)
def evaluate(
    recipe: Annotated[str, typer.Argument(help="The recipe whose model, domains and evaluation are used.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings like evaluation.tasks=40.")] = None,
    name: Annotated[str, typer.Option(help="Name of the run directory.")] = "",
    root: Annotated[Path, typer.Option(help="Where run directories are.")] = Path("runs"),
) -> None:
    """Evaluate a recipe's base model on its held-out tasks; an older evaluation of that name is replaced."""
    from temper.cli.run import perform, place, remove
    from temper.runs import driver
    from temper.runs.recipe import load
    from temper.store.run import RunDirectory

    loaded = msgspec.structs.replace(load(recipe, overrides or ()), stages=())
    path = place(root, name or f"eval-{loaded.name}")
    if (path / "recipe.json").is_file() and RunDirectory.view(path).recipe.get("stages"):
        raise ConfigError(f"{path} holds a run that trains, and only evaluations are replaced: choose another --name")
    remove(path)
    perform(path, lambda sinks: driver.start(loaded, path, sinks))
