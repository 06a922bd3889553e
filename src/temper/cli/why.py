"""`temper why`: the story of a run, or of one rollout, decision by decision."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from temper.cli import app
from temper.core.errors import ConfigError, MissingError, nearest

if TYPE_CHECKING:
    from temper.store.run import RunDirectory

EXAMPLES = """Examples:

  temper why runs/quickstart
  temper why runs/quickstart --page
  temper why runs/quickstart rl-12-3-0
  temper why runs/quickstart rl-12
"""


@app.command(epilog=EXAMPLES)
def why(
    path: Annotated[Path, typer.Argument(help="The run's directory.")],
    rollout: Annotated[str, typer.Argument(help="A rollout like rl-12-3-0, or all of a group: rl-12.")] = "",
    page: Annotated[bool, typer.Option("--page", help="Write why.html there: one file that needs no other.")] = False,
) -> None:
    """Say where a run's time went, what held it up, and what was decided; or tell the story of one rollout."""
    from temper.evaluation import sections
    from temper.evaluation.diagnosis import diagnosis
    from temper.store.run import RunDirectory

    run = RunDirectory.view(path)
    if rollout and page:
        raise ConfigError(f"--page is of the whole run: leave out the rollout {rollout!r}")
    if rollout:
        _rollout(run, rollout)
        return
    found = diagnosis(run)
    if page:
        typer.echo(f"page: {run.write('why.html', sections.page(found[0].title, found))}")
    else:
        typer.echo(sections.text(found))


def _rollout(run: RunDirectory, rollout: str) -> None:
    """When and why it was started, held, retried, cancelled or dropped, and how it was graded."""
    from temper.evaluation.sections import plain
    from temper.scheduling.ledger import STAGES

    traces = {t.id: t for t in run.traces}
    concerns = re.compile(rf"{re.escape(rollout)}(-|$)")
    number = re.match(r"rl-(\d+)", rollout)
    held = f"group {number[1]} " if number else None
    found = [e for e in run.events if concerns.match(e.whom) or (held and e.what == "wait" and held in e.why)]
    mine = {name: trace for name, trace in traces.items() if concerns.match(name)}
    if not found and not mine:
        raise MissingError(f"{run.path} knows no rollout {rollout!r}; {nearest(rollout, traces)}")
    for event in [*found, *(e for trace in mine.values() for e in trace.events if e.what == "placed")]:
        typer.echo(f"{event.when:9.1f} s  {event.what:12} {event.whom:16} {plain(event.why)}")
    verdicts = {v.trace: v for v in run.verdicts if v.trace in mine}
    for name, trace in mine.items():
        spent = ", ".join(f"{stage} {seconds:.2f} s" for stage in STAGES if (seconds := getattr(trace.cost, stage)))
        typer.echo(f"{name}: ended by {trace.stop}; {spent}")
        if verdict := verdicts.get(name):
            detail = verdict.evidence[0].text if verdict.evidence else ""
            typer.echo(f"{name}: {verdict.why}, blame {verdict.blame}, reward {verdict.reward:g} {plain(detail)}")
