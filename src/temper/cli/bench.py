"""`temper bench`: measurements against named peers, in turns, in one run. The subjects are files of `benchmarks/`."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from temper.cli import app
from temper.cli.checkout import module, place
from temper.core import config
from temper.core.errors import ConfigError, MissingError, nearest
from temper.store.disk import disk_errors

EXAMPLES = """Examples:

  temper bench sandbox
  temper bench engine --json engine.json
  temper bench engine requests=64 slots=32
"""


@app.command(epilog=EXAMPLES)
def bench(
    name: Annotated[str, typer.Argument(help="What to measure.")] = "",
    settings: Annotated[list[str] | None, typer.Argument(help="Settings like requests=64.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Measure every subject, one after the other.")] = False,
) -> None:
    """Measure a subject against its peers and print ratios with their spread."""
    from temper.runs.driver import commit

    known = {p.stem.replace("_", "-"): p for p in sorted(place("benchmarks").glob("*.py"))}
    if everything == bool(name):
        raise ConfigError(f"expected one subject or --all; {nearest(name, known)}")
    if name and name not in known:
        raise MissingError(f"nothing is measured under {name!r}; {nearest(name, known)}")
    if json_file:
        if everything:
            raise ConfigError("--json holds the result of one subject: leave out --all")
        writable(json_file)
    for subject in [name] if name else known:
        measured = module(f"benchmarks.{known[subject].stem}", known[subject])
        tree = _settings(measured.SETTINGS, settings or ())
        result = {"name": subject} | measured.run(tree) | {"machine": _machine(), "commit": commit()}
        for key, value in result["metrics"].items():
            spread = result.get("spread", {}).get(key)
            typer.echo(f"{subject} {key} = {value:.4g}" + (f"  (min, median, max: {spread})" if spread else ""))
        if json_file:
            with disk_errors(json_file):
                json_file.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


def writable(path: Path) -> None:
    """Raises BackendError where a result could not be written, before anything is measured for it."""
    with disk_errors(path):
        path.open("ab").close()


def _settings(known: dict[str, Any], given: Sequence[str]) -> dict[str, Any]:
    """Settings by name. Raises ConfigError for one that the subject does not have, or that is of another type."""
    tree = config.apply({}, given)
    for key, value in tree.items():
        if key not in known:
            raise ConfigError(f"unknown setting {key!r}; {nearest(key, known)}")
        kind = type(known[key])
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ConfigError(f"{key}: expected {kind.__name__}, got {value!r}")
    return tree


def _machine() -> dict[str, Any]:
    model = next(
        (s.split(":")[1].strip() for s in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in s), ""
    )
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
