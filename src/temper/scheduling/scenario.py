"""A question to the simulator: which rollouts, which policy, which machine; and the published policies beside it.

A scenario is a TOML file, or a run directory whose recorded rollouts are drawn from again. Every assumption is a field.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from temper.core.config import Some
from temper.core.errors import ConfigError
from temper.scheduling import pacing
from temper.scheduling.baselines import Rounds, WindowedFifo
from temper.scheduling.ledger import Suggestion
from temper.scheduling.pacing import Pacing
from temper.scheduling.scene import Cluster, Load, Outcome
from temper.scheduling.simulator import Policy, Simulation
from temper.store.run import RunDirectory


class Scenario(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The defaults are the long-tailed trace of `temper bench scheduler`: a machine that the tail leaves empty."""

    steps: Some = 40
    seed: int = 0
    policy: pacing.Config = pacing.Config(batch=2048, group=16, eta=4, capacity=1024)
    cluster: Cluster = Cluster()
    loads: tuple[Load, ...] = (Load(),)


def recorded(path: str | Path) -> tuple[Load, ...]:
    """The finished rollouts of a run, by domain; lengths are seconds of prefill and decode, tasks are groups."""
    groups: dict[str, dict[str, list[float]]] = {}
    tools: dict[str, list[float]] = {}
    verifies: dict[str, list[float]] = {}
    for trace in RunDirectory.view(Path(path)).traces:
        seconds = trace.cost.prefill + trace.cost.decode
        if trace.fault is None and seconds > 0:
            groups.setdefault(trace.domain, {}).setdefault(trace.task, []).append(seconds)
            tools.setdefault(trace.domain, []).append(trace.cost.tool)
            verifies.setdefault(trace.domain, []).append(trace.cost.verify)
    if not groups:
        raise ConfigError(f"{path} has no finished rollouts with measured seconds: give a run that sampled some")
    return tuple(
        Load(
            name=name,
            recorded=tuple(tuple(found) for found in tasks.values()),
            tool=sum(tools[name]) / len(tools[name]),
            verify=sum(verifies[name]) / len(verifies[name]),
        )
        for name, tasks in sorted(groups.items())
    )


def simulate(scenario: Scenario) -> tuple[Outcome, Suggestion | None]:
    """What our policy makes of it, and which stage is worth widening."""
    run = _simulation(scenario, Pacing(scenario.policy, {load.name: load.share for load in scenario.loads}))
    outcome, replicas = run.run(scenario.steps), scenario.cluster.replicas
    workers = scenario.cluster.workers | ({"decode": replicas} if replicas else {}) | {"gradient": 1}
    return outcome, run.ledger.suggestion(workers)


def compare(scenario: Scenario) -> dict[str, Outcome]:
    """The published policies, which know one domain, under the same rules."""
    if len(scenario.loads) != 1:
        raise ConfigError(f"the published policies take turns by no domains: give one load, not {len(scenario.loads)}")
    size, name = scenario.policy.group, scenario.loads[0].name
    need = scenario.policy.batch // size
    others: dict[str, Policy] = {
        "fifo": Rounds(need, size, name),
        "cancel 1.25": Rounds(need, size, name, 0.25, "cancel"),
        "tail batching 1.25": Rounds(need, size, name, 0.25, "defer"),
        "partial 2.0": Rounds(need, size, name, 1.0, "carry"),
        "window 3.0": WindowedFifo(need, size, name, 3 * need),
    }
    return {n: _simulation(scenario, policy).run(scenario.steps) for n, policy in others.items()}


def _simulation(scenario: Scenario, policy: Policy) -> Simulation:
    return Simulation(policy, scenario.loads, scenario.cluster, scenario.policy.group, scenario.seed)
