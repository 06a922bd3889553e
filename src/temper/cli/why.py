"""`temper why`: the story of one rollout, decision by decision."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from temper.cli import app


@app.command(epilog="Examples:\n\n  temper why runs/quickstart rl-12-3-0\n  temper why runs/quickstart rl-12")
def why(
    path: Annotated[Path, typer.Argument(help="The run's directory.")],
    rollout: Annotated[str, typer.Argument(help="A rollout like rl-12-3-0, or all of a group: rl-12.")],
) -> None:
    """Say when and why a rollout was started, held, retried, cancelled or dropped, and how it was graded."""
    from temper.core.errors import MissingError, nearest
    from temper.store.run import RunDirectory

    run = RunDirectory.view(path)
    traces = {t.id: t for t in run.traces}
    concerns = re.compile(rf"{re.escape(rollout)}(-|$)")
    number = re.match(r"rl-(\d+)", rollout)
    held = f"group {number[1]} " if number else None
    found = [e for e in run.events if concerns.match(e.whom) or (held and e.what == "wait" and held in e.why)]
    mine = {name: trace for name, trace in traces.items() if concerns.match(name)}
    if not found and not mine:
        raise MissingError(f"{path} knows no rollout {rollout!r}; {nearest(rollout, traces)}")
    for event in found:
        typer.echo(f"{event.when:9.1f} s  {event.what:12} {event.whom:16} {_plain(event.why)}")
    verdicts = {v.trace: v for v in run.verdicts if v.trace in mine}
    for name, trace in mine.items():
        cost = trace.cost
        spent = {s: getattr(cost, s) for s in ("queue", "prefill", "decode", "tool", "verify") if getattr(cost, s)}
        typer.echo(
            f"{name}: ended by {trace.stop}; " + ", ".join(f"{s} {seconds:.2f} s" for s, seconds in spent.items())
        )
        if verdict := verdicts.get(name):
            detail = verdict.evidence[0].text if verdict.evidence else ""
            typer.echo(f"{name}: {verdict.why}, blame {verdict.blame}, reward {verdict.reward:g} {_plain(detail)}")


def _plain(text: str) -> str:
    """One line without control characters: reasons may quote what a model wrote."""
    return repr(text)[1:-1]
