"""The command `temper`: one thin file a verb. Errors meant for people end as one message and an exit code."""

from __future__ import annotations

import os
import sys

import typer

from temper.core.errors import TemperError

app = typer.Typer(
    help="Post-train a language model on verifiable tasks in sandboxes: `temper run quickstart` shows all of it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def main() -> None:
    """Entry point. Exit codes: 0 well, 130 interrupted, others by the error (`core.errors`)."""
    # Sandboxes and verifiers share the cores with torch: threads that spin while they wait made a busy machine many
    # times slower (305 s of unit tests against 9). Read by OpenMP when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    from temper.cli import bench, doctor, evaluate, listing, run, sandbox  # each adds its verb to `app`

    del bench, doctor, evaluate, listing, run, sandbox
    try:
        app()
    except TemperError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(error.exit_code)
