"""`temper simulate`: the scheduler on paper, over recorded or synthetic lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from temper.cli import app

EXAMPLES = """Examples:

  temper simulate
  temper simulate steps=200 policy.eta=2 cluster.gradient=774
  temper simulate runs/quickstart steps=20 policy.batch=128 policy.group=4 policy.capacity=64 cluster.decode=64
  temper simulate cluster.replicas=8 cluster.cache=4e5 cluster.speed.base=0.02 cluster.speed.each=2e-4
  temper simulate cluster.toml --compare
"""


@app.command(epilog=EXAMPLES)
def simulate(
    source: Annotated[str, typer.Argument(help="A run directory, or a scenario's TOML file.")] = "",
    settings: Annotated[list[str] | None, typer.Argument(help="Settings like cluster.decode=256; 0: no limit.")] = None,
    compare: Annotated[bool, typer.Option(help="Also simulate the published policies (one domain).")] = False,
) -> None:
    """Predict goodput, age, bias and use of a scenario, with the policy that real runs use."""
    import msgspec

    from temper.core import config
    from temper.scheduling import scenario

    given = list(settings or ())
    if "=" in source:
        given, source = [source, *given], ""
    recorded = bool(source) and Path(source).is_dir()
    tree = config.apply(config.load(source) if source and not recorded else {}, given)
    if isinstance(policy := tree.get("policy", {}), dict):  # its defaults are those of a scenario, key by key
        tree["policy"] = msgspec.to_builtins(scenario.Scenario().policy) | policy
    asked = config.build(scenario.Scenario, tree, "scenario")
    if recorded:
        asked = msgspec.structs.replace(asked, loads=scenario.recorded(source))
    outcome, suggestion = scenario.simulate(asked)
    typer.echo(f"{'policy':18} goodput  waste  length bias  domain bias  age mean/max      seconds  over bound")
    rows = {"temper": outcome} | (scenario.compare(asked) if compare else {})
    for name, row in rows.items():
        typer.echo(
            f"{name:18} {row.goodput:7.3f} {row.waste:6.3f} {row.length_bias:12.3f} {row.domain_bias:12.3f}  "
            f"{row.age_mean:8.2f}/{row.age_max:<3d} {row.seconds:12.6g} {row.seconds / row.bound:11.3f}"
        )
    used = ", ".join(f"{stage} {share:.0%}" for stage, share in outcome.utilisation.items())
    typer.echo(
        f"{outcome.trained} rollouts in {outcome.steps} steps, {outcome.in_flight} at most at once; used: {used}"
    )
    if asked.cluster.replicas:
        typer.echo(
            f"replicas: {outcome.migrations} migrations, {outcome.preemptions} preempted as a cache was full, "
            f"{outcome.expired} caches given up during tools, {outcome.prefilled:.3g} tokens read"
        )
    if asked.cluster.memory:
        typer.echo(f"memory: {outcome.evicted} rollouts began again, as sandboxes used more than there was")
    if suggestion:
        typer.echo(str(suggestion))
