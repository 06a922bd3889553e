"""`temper regrade`: stored rollouts under the verifiers of today."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from temper.cli import app


@app.command(epilog="Example:\n\n  temper regrade runs/quickstart")
def regrade(path: Annotated[Path, typer.Argument(help="The run's directory.")]) -> None:
    """Grade the rollouts of a run anew where its verifier has changed, add the verdicts, and show what flipped."""
    from temper.store.run import RunDirectory
    from temper.verifiers.audit.replay import regrade as again

    with RunDirectory.open(path) as run:
        done = asyncio.run(again(run))
    for flip in done.flips:
        typer.secho(
            f"{flip.trace}  {flip.task}  {flip.before:g} -> {flip.after:g}  {flip.why}",
            fg="green" if flip.after > flip.before else "red",
        )
    typer.echo(
        f"{done.regraded} regraded, {len(done.flips)} flipped; {done.current} were graded by today's verifiers, of "
        f"{done.changed} a tool answers otherwise today, of {done.lost} the task is gone"
    )
