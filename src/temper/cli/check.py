"""`temper check`: the contract suites, for authors of plugins. The suites are folders of `tests/contract`."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from temper.cli import app
from temper.cli.checkout import module, place
from temper.core import config, registry
from temper.core.errors import MissingError, nearest
from temper.core.task import Case

group = typer.Typer(help="Hold a plugin to the contract of its kind.", no_args_is_help=True)
app.add_typer(group, name="check")


@group.command("sandbox", epilog="Example:\n\n  temper check sandbox local --only climb/")
def sandbox(
    name: Annotated[str, typer.Argument(help="Which sandbox: see `temper list sandboxes`; a dotted path for yours.")],
    settings: Annotated[list[str] | None, typer.Argument(help="Settings of the backend like image=debian.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only cases whose title begins so, e.g. rollback/.")] = None,
    save: Annotated[Path | None, typer.Option(help="Add the table to this JSON file, and to a page beside it.")] = None,
) -> None:
    """Attack a sandbox backend and look from outside; exit status 1 when a door is open that its limits should shut."""
    suite = load("sandbox")
    backend, configured = registry.configure("sandboxes", config.apply({"kind": name}, settings or ()))
    chosen = [case for case in suite.cases() if case.title.startswith(tuple(only or ("",)))]
    if not chosen:
        known = {case.title.partition("/")[0] + "/" for case in suite.cases()}
        raise MissingError(f"no case begins with {' or '.join(only or ())}; {nearest((only or [''])[0], known)}")
    results = asyncio.run(
        suite.examine(lambda: backend.create(configured), chosen, getattr(backend, "OPEN_DOORS", {}), _tell)
    )
    if save:
        suite.doors.save(save, name, results)
    counts = Counter(result.door for result in results)
    typer.echo(", ".join(f"{counts[door]} {door}" for door in ("shut", "excused", "skipped", "open")))
    raise typer.Exit(1 if counts["open"] else 0)


@group.command("verifier", epilog="Example:\n\n  temper check verifier math")
def verifier(
    name: Annotated[str, typer.Argument(help="Which verifier: see `temper list verifiers`; a dotted path for yours.")],
    settings: Annotated[list[str] | None, typer.Argument(help="Settings of the verifier like seconds=3.")] = None,
) -> None:
    """Try a verifier on its specimen and on the domains that use it; exit status 1 where the contract is broken."""
    from temper.verifiers.audit.contract import examine

    specimen, tree = _specimen(name)
    found = asyncio.run(examine(name, config.apply(tree, settings or ()), specimen))
    for what, why in found:
        typer.secho(f"{'broken' if why else 'kept':8} {what}  {why}", fg="red" if why else "green")
    raise typer.Exit(1 if any(why for _, why in found) else 0)


def _specimen(name: str) -> tuple[Any, dict[str, Any]]:
    """What the contract suite tries a shipped verifier on, and its settings; nothing outside a checkout."""
    try:
        suite = module("temper_contract_verifiers", place("tests", "contract", "test_verifiers.py"))
    except MissingError:
        return None, {}
    if name not in suite.SPECIMENS:
        return None, {}
    found = suite.SPECIMENS[name]
    tried = ((True, "the gold answer", found.gold), (False, "the wrong answer", found.wrong))
    cases = [Case(right=right, why=why, answer=answer, artifacts=found.deliver(answer)) for right, why, answer in tried]
    return (suite.episode(found, found.gold)[0], cases), dict(found.settings)


@group.command("numerics", epilog="Example:\n\n  temper check numerics tiny: --dtype float64")
def numerics(
    model: Annotated[str, typer.Argument(help="A model, as `model.base` of a recipe names it.")],
    dtype: Annotated[str, typer.Option(help="float64, float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="Where it runs: cpu, cuda.")] = "cpu",
) -> None:
    """Is loss and gradient the same however rows are cut and shared, and is the engine the trainer's policy?"""
    from temper.runs.numerics import check as check_numerics

    bad = 0
    for found in check_numerics(model, dtype, device):
        bad += not found.fine
        line = f"{found.what:32} loss {found.loss:.1e}  gradient {found.gradient:.1e}  (at most {found.limit:.0e})"
        typer.secho(line, fg=None if found.fine else "red")
    raise typer.Exit(1 if bad else 0)


def load(kind: str) -> ModuleType:
    """The suite of a kind, a package that is no part of the installed one. Raises MissingError outside a checkout."""
    return module(f"temper_contract_{kind}", place("tests", "contract", kind))


def _tell(result: Any) -> None:
    colour = {"shut": "green", "excused": "yellow", "skipped": "cyan", "open": "red"}[result.door]
    typer.secho(f"{result.door:8} {result.seconds:6.2f} s  {result.case}  {result.why}", fg=colour)
