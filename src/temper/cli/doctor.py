"""`temper doctor`: what this machine enforces, and what to do about what it does not."""

from __future__ import annotations

import platform

import typer

from temper.cli import app


@app.command(epilog="Example:\n\n  temper doctor")
def doctor() -> None:
    """Say what this machine can isolate, limit and compute; exit status 5 when sandboxes cannot run at all."""
    from rich.console import Console
    from rich.table import Table

    from temper.sandboxes.doctor import report

    rows = report()
    table = Table(
        "what", "enforced", "why, and what to do", title=f"{platform.platform()}, Python {platform.python_version()}"
    )
    colour = {"hard": "green", "advisory": "yellow", "none": "red"}
    for what, enforcement, why in rows:
        table.add_row(what, f"[{colour[enforcement]}]{enforcement}[/]", why)
    Console().print(table)
    if any(what == "isolation" and enforcement == "none" for what, enforcement, _ in rows):
        raise typer.Exit(5)
