"""`temper list`: what can be named in a recipe."""

from __future__ import annotations

from typing import Annotated

import typer

from temper.cli import app
from temper.core import registry
from temper.core.errors import MissingError, nearest


@app.command(
    "list", epilog="Examples:\n\n  temper list\n  temper list domains\n  temper list algorithms\n  temper list recipes"
)
def listing(
    kind: Annotated[str, typer.Argument(help="A kind of plugin, or 'recipes'; all when left out.")] = "",
) -> None:
    """List recipes and plugins by kind, without importing them."""
    from temper.runs.recipe import shipped

    kinds = {"recipes": shipped} | {room: lambda room=room: sorted(registry.names(room)) for room in registry.ENTRY}
    kind = {name.rpartition(".")[2]: name for name in kinds}.get(kind, kind)  # `algorithms` are `training.algorithms`
    if kind and kind not in kinds:
        raise MissingError(f"nothing is listed under {kind!r}; {nearest(kind, kinds)}")
    for name, names in kinds.items():
        if kind in ("", name):
            typer.echo(f"{name}: {', '.join(names())}" if not kind else "\n".join(names()))
