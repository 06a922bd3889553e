"""`temper sandbox`: a sandbox by hand."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from temper.cli import app
from temper.core import registry
from temper.core.task import SandboxSpec

group = typer.Typer(help="Run a command in a sandbox as a task would.", no_args_is_help=True)
app.add_typer(group, name="sandbox")


@group.command("exec", epilog="Example:\n\n  temper sandbox exec --file test.py -- python3 test.py")
def execute(
    argv: Annotated[list[str], typer.Argument(help="The command and its arguments, after --.")],
    file: Annotated[list[Path] | None, typer.Option(help="A file to put into the working directory.")] = None,
    seconds: Annotated[float, typer.Option(help="Limit of wall-clock time.")] = 10.0,
    backend: Annotated[str, typer.Option(help="Which sandbox: see `temper list sandboxes`.")] = "local",
) -> None:
    """Run one command, print its streams and how it ended; exit status is the command's, or 1 when it was ended."""
    spec = SandboxSpec(files={f.name: f.read_bytes() for f in file or ()})
    found = asyncio.run(_execute(backend, spec, argv, seconds))
    sys.stdout.buffer.write(found.stdout)
    sys.stderr.buffer.write(found.stderr)
    typer.secho(f"{found.cause} {found.code} after {found.seconds:.3f} s {found.evidence}", err=True, dim=True)
    raise typer.Exit(found.code if found.cause == "exited" else 1)


async def _execute(backend: str, spec: SandboxSpec, argv: list[str], seconds: float):  # type: ignore[no-untyped-def]
    module, config = registry.configure("sandboxes", backend)
    sandboxes = module.create(config)
    try:
        box = await sandboxes.open(spec)
        return await box.exec(argv, seconds=seconds)
    finally:
        await sandboxes.close()
