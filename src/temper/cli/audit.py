"""`temper audit`: how often a domain's verifier errs, what attacks it holds, and the card that says so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from temper.cli import app
from temper.cli.bench import writable
from temper.core import registry
from temper.core.errors import ConfigError, MissingError
from temper.store.disk import disk_errors

MOST_SAMPLES = 1300  # right ones of a domain, and wrong ones: more than what is tried besides them on 300 tasks
_JUDGED = "that a second rule could judge are beside its card"
EXAMPLES = """Examples:

  temper audit arithmetic
  temper audit my_package.my_domain --json card.json
  temper audit --all --json audit.json
  temper audit --mine runs/quickstart
  temper audit --samples runs/long
  temper audit legal --harvest 240
"""


@app.command(epilog=EXAMPLES)
def audit(
    domains: Annotated[list[str] | None, typer.Argument(help="Domains: see `temper list domains`.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every domain that is listed.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure also where the card is current.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write cards and worst figures to a file.")] = None,
    mine: Annotated[Path | None, typer.Option("--mine", help="Look for attacks among the successes of a run.")] = None,
    samples: Annotated[Path | None, typer.Option("--samples", help="Keep rollouts of a run as known answers.")] = None,
    harvest: Annotated[int, typer.Option(min=0, help="Ask a model for so many answers first.")] = 0,
    model: Annotated[str, typer.Option(help="The model that is asked; recipes' default otherwise.")] = "",
) -> None:
    """Measure verifiers with known answers, near misses and attacks; cards are kept beside the domains.

    Exit status 1 where a card does not allow training, unless its figures go to a file.
    """
    if sum(map(bool, (domains, everything, mine, samples))) != 1:
        raise ConfigError("expected domains (`temper list domains`), --all, --mine or --samples, one of them")
    if json_file:
        writable(json_file)
    if mine:
        _mine(mine)
        return
    if samples:
        from temper.store.run import RunDirectory
        from temper.verifiers.audit import replay

        for kind, kept in asyncio.run(replay.harvest(RunDirectory.view(samples), MOST_SAMPLES)).items():
            typer.echo(f"{kind}: {kept} answers {_JUDGED}")
        return
    for kind in domains or ():
        registry.find("domains", kind)  # so that a typing error costs no measurement
    found, missing = {}, []
    for kind in domains or sorted(registry.names("domains")):
        try:
            if harvest:
                _ask(kind, harvest, model)
            found[kind] = _card(kind, again or bool(harvest))
        except MissingError as error:  # the package of an extra
            if domains:
                raise
            missing.append(kind)
            typer.secho(f"{kind} cannot be audited here: {error}", fg="yellow", err=True)
    if json_file:
        from temper.runs.driver import commit
        from temper.verifiers.audit import cards

        with disk_errors(json_file):
            json_file.write_bytes(cards.summary(found, commit()))
    elif missing or any(card.shortfall() for card in found.values()):
        raise typer.Exit(1)


def _ask(kind: str, answers: int, model: str) -> None:
    from temper.cli.display import display
    from temper.runs.harvest import harvest

    with display(Path(kind)) as sink:
        kept = asyncio.run(harvest(kind, answers, model, MOST_SAMPLES, [sink]))
    typer.echo(f"{kind}: {kept} answers {_JUDGED}")


def _card(kind: str, again: bool) -> Any:
    """The current card, or a new one, which is kept."""
    from temper.verifiers.audit import cards
    from temper.verifiers.audit.measure import measure

    module = registry.find("domains", kind)
    card = cards.load(module)
    if card is None or again or cards.problem(kind) not in ("", card.shortfall()):
        card = asyncio.run(measure(kind, progress=_tell))
        cards.save(module, card)
    typer.echo(cards.page(card))
    return card


def _tell(part: str, done: int, total: int) -> None:
    if done == total or done % 50 == 0:
        typer.echo(f"{part}: {done} of {total}", err=True)


def _mine(path: Path) -> None:
    import msgspec

    from temper.store.run import RunDirectory
    from temper.verifiers.audit.replay import mine

    run = RunDirectory.view(path)
    candidates = asyncio.run(mine(run))
    out = run.write("attack-candidates.json", msgspec.json.format(msgspec.json.encode(candidates), indent=1))
    for found in candidates:
        elsewhere = f"paid on {found.paid_on} of {found.tried} other tasks"
        typer.secho(f"{found.trace}  {elsewhere}  {'; '.join(found.signs)}", fg="red" if found.paid_on else "yellow")
    paid = sum(found.paid_on > 0 for found in candidates)
    typer.echo(f"{len(candidates)} odd successes, {paid} of them paid for other tasks, too: {out}")
