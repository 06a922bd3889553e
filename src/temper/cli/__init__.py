"""The command `temper`: one thin file a verb. Errors meant for people end as one message and an exit code."""

from __future__ import annotations

import importlib
import os
import sys

import typer

from temper.core.blame import FaultError
from temper.core.errors import BackendError, TemperError

app = typer.Typer(
    help="Post-train a language model on verifiable tasks in sandboxes: `temper run quickstart` shows all of it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

VERBS = "audit bench check doctor evaluate listing new plan regrade run sandbox simulate why"


def main() -> None:
    """Entry point. Exit codes: 0 well, 130 interrupted, others by the error (`core.errors`)."""
    # Sandboxes and verifiers share the cores with torch, whose waiting threads spin: without a limit a busy machine is
    # many times slower (14.5 s against 0.3 s for 41 small steps), with this one a quiet one is as fast as without.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    for verb in VERBS.split():
        importlib.import_module(f"temper.cli.{verb}")  # adds it
    try:
        app()
    except TemperError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(error.exit_code)
    except FaultError as error:  # of ours, outside any episode: the engine, say
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(BackendError.exit_code)
