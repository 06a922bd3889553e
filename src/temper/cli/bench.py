"""`temper bench`: measurements against named peers, in turns, in one run. The subjects are files of `benchmarks/`."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

from temper.cli import app
from temper.core import config
from temper.core.errors import ConfigError, MissingError, nearest

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
    known = {p.stem.replace("_", "-"): p for p in sorted(_folder().glob("*.py"))}
    if everything == bool(name):
        raise ConfigError(f"expected one subject or --all; {nearest(name, known)}")
    if name and name not in known:
        raise MissingError(f"nothing is measured under {name!r}; {nearest(name, known)}")
    tree: dict[str, Any] = {}
    for setting in settings or ():
        config.apply(tree, setting)
    for subject in [name] if name else known:
        result = {"name": subject} | _module(known[subject]).run(tree) | {"machine": _machine(), "commit": commit()}
        for key, value in result["metrics"].items():
            spread = result.get("spread", {}).get(key)
            typer.echo(f"{subject} {key} = {value:.4g}" + (f"  (min, median, max: {spread})" if spread else ""))
        if json_file:
            json_file.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


def commit() -> str:
    """The checkout's commit, "" outside one."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=_folder())
    except (OSError, subprocess.CalledProcessError, MissingError):
        return ""
    return head.stdout.strip()


def _folder() -> Path:
    folder = Path(__file__).parents[3] / "benchmarks"
    if not folder.is_dir():
        raise MissingError("benchmarks are in a checkout of the project, not in its wheel: clone it and run there")
    return folder


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"benchmarks.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _machine() -> dict[str, Any]:
    model = next(
        (s.split(":")[1].strip() for s in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in s), ""
    )
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
