"""`temper new`: a plugin that works and passes its contract, to be changed into yours."""

from __future__ import annotations

import importlib.util
import keyword
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from temper.cli import app
from temper.core.errors import ConfigError
from temper.store.disk import disk_errors

group = typer.Typer(help="Write a new plugin from a template.", no_args_is_help=True)
app.add_typer(group, name="new")
Name = Annotated[str, typer.Argument(help="Its dotted path, like my_package.my_name; written below this folder.")]


@group.command("verifier", epilog="Example:\n\n  temper new verifier my_package.capitals")
def verifier(name: Name) -> None:
    """A verifier with a specimen: one task and answers whose grades are known."""
    _write("verifier", name, "temper check verifier")


@group.command("domain", epilog="Example:\n\n  temper new domain my_package.reversed_words")
def domain(name: Name) -> None:
    """A domain with a seeded stream of tasks, its gold answers, and known right and wrong ones."""
    _write("domain", name, "temper audit")


def _write(kind: str, name: str, then: str) -> None:
    parts = name.split(".")
    if len(parts) < 2 or not all(part.isidentifier() and not keyword.iskeyword(part) for part in parts):
        raise ConfigError(f"expected a dotted path like my_package.my_{kind}, got {name!r}")
    if not Path(parts[0]).is_dir() and importlib.util.find_spec(parts[0]):
        raise ConfigError(f"Python has a module {parts[0]!r} elsewhere, which would hide this one: choose another name")
    path = Path(*parts).with_suffix(".py")
    if path.exists():
        raise ConfigError(f"{path} is already there: choose another name")
    text = resources.files("temper.cli.templates").joinpath(f"{kind}.py").read_text("utf-8")
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in path.parents[:-1]:
            (folder / "__init__.py").touch()
        path.write_text(text.replace("NAME", name if kind == "domain" else path.stem), "utf-8")
    typer.echo(f"wrote {path}; with this folder on PYTHONPATH: {then} {name}")
