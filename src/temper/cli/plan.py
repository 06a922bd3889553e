"""`temper plan`: what a run would take on machines that one does not have yet."""

from __future__ import annotations

from typing import Annotated

import typer

from temper.cli import app

EXAMPLES = """Examples:

  temper plan box
  temper plan box machine.gpus=16 pacing.eta=2
  temper plan trillions publish=delta
  temper plan mine.toml
"""


@app.command(epilog=EXAMPLES)
def plan(
    name: Annotated[str, typer.Argument(help="A TOML file, or a shipped example: laptop, box, trillions.")],
    settings: Annotated[list[str] | None, typer.Argument(help="Settings like machine.gpus=16.")] = None,
) -> None:
    """Say how GPUs divide among stages, what a step takes and what holds it up; every assumption with its source."""
    from temper.scheduling import plan

    question = plan.ask(name, settings or ())
    for line in plan.report(question, plan.answer(question)):
        typer.echo(line)
