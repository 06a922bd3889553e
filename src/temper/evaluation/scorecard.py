"""The result of a run: outcomes of every stage become report.json, and from that report.md and report.png.

The tree of report.json: commit, wall_s, stages.STAGE.{overall, macro, domains.NAME}, gain.A_to_B, and the facts given.
What the page says is in `evaluation.page`, how the plot looks in `evaluation.plot`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from temper.core.errors import ConfigError
from temper.evaluation.compare import compare
from temper.evaluation.outcome import Outcome, success
from temper.evaluation.page import markdown
from temper.evaluation.plot import draw
from temper.evaluation.sections import Section
from temper.evaluation.statistics import pass_at_k
from temper.store.run import RunDirectory


class Facts(Struct, frozen=True, kw_only=True):
    """What the outcomes do not know. `wall_s`: from the first command to the end. `unaudited`: law 7's exceptions.

    `measures`: each stage's own held-out metric, before and after. `spent`: see `diagnosis.spending`. `alarms`: what
    the guards said while it trained.
    `examples`: how many the base model had in its prompt. `settings`: more for the record (tokens, ages, seeds, …).
    """

    name: str
    model: str
    commit: str
    wall_s: float
    examples: int = 2
    unaudited: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    measures: dict[str, Any] = field(default_factory=dict)
    spent: tuple[Section, ...] = ()
    alarms: tuple[str, ...] = ()


def write(run: RunDirectory, outcomes: Sequence[Outcome], facts: Facts) -> dict[str, Any]:
    """Write all three into the run's directory; gives the tree of report.json."""
    report = build(outcomes, facts)
    run.write("report.json", msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    run.write("report.md", markdown(report))
    run.write("report.png", draw(report, *_curves(run)))
    return report


def build(outcomes: Sequence[Outcome], facts: Facts) -> dict[str, Any]:
    """The tree of report.json: plain data, nan where nothing was graded. Raises ConfigError without outcomes."""
    if not outcomes:
        raise ConfigError("nothing was evaluated, so there is no report: let the recipe evaluate at least one task")
    stages: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        stages.setdefault(outcome.stage, []).append(outcome)
    names = list(stages)  # in the order in which they were evaluated
    pairs = [(a, b) for n, a in enumerate(names) for b in names[n + 1 :]]
    return {
        **msgspec.to_builtins(facts),
        "stages": {name: _stage(stages[name]) for name in names},
        "gain": {f"{a}_to_{b}": _gain(stages[a], stages[b]) for a, b in pairs},
    }


def _curves(run: RunDirectory) -> tuple[dict[str, list[tuple[int, float]]], list[tuple[int, float]]]:
    """Of reinforcement learning: mean reward by domain, and success on held-out tasks, each with its step."""
    steps = {m.step: m.values for m in run.metrics if m.stage == "rl"}  # one taken again after a crash counts once
    reward: dict[str, list[tuple[int, float]]] = {}
    for step, values in sorted(steps.items()):
        for key in (key for key in values if key.startswith("reward/")):
            reward.setdefault(key.removeprefix("reward/"), []).append((step, values[key]))
    return reward, [(step, values["heldout"]) for step, values in sorted(steps.items()) if "heldout" in values]


def _stage(outcomes: list[Outcome]) -> dict[str, Any]:
    domains = {d: _summary([o for o in outcomes if o.domain == d]) for d in sorted({o.domain for o in outcomes})}
    graded = [summary["success"] for summary in domains.values() if summary["n"]]
    macro = sum(graded) / len(graded) if graded else float("nan")
    return {"overall": _summary(outcomes), "macro": macro, "domains": domains}


def _summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Rates over graded rollouts; `n` counts tasks. Masked ones are in no mean and only counted."""
    graded = [o for o in outcomes if not o.verdict.masked]
    rate = success(graded)
    return {
        "success": rate.mean,
        "low": rate.low,
        "high": rate.high,
        "n": rate.n,
        "score": sum(o.verdict.score for o in graded) / len(graded) if graded else float("nan"),
        "pass_at": _pass_at(graded),
        "rollouts": len(outcomes),
        "malformed": sum(o.malformed for o in graded),
        "masked": {status: sum(o.verdict.status == status for o in outcomes) for status in ("infra", "invalid")},
        "retried": sum(o.attempts - 1 for o in outcomes),
        "tokens_out": sum(o.tokens for o in outcomes),
    }


def _pass_at(graded: list[Outcome]) -> dict[str, float]:
    """pass@k for k = 2, 4, 8, … as far as every task has that many graded rollouts."""
    found: dict[str, list[bool]] = {}
    for outcome in graded:
        found.setdefault(outcome.task, []).append(outcome.success)
    fewest = min(map(len, found.values()), default=0)
    ks = [2**power for power in range(1, fewest.bit_length()) if 2**power <= fewest]
    return {str(k): sum(pass_at_k(len(won), sum(won), k) for won in found.values()) / len(found) for k in ks}


def _gain(before: list[Outcome], after: list[Outcome]) -> dict[str, Any]:
    found = compare(before, after)
    return {**msgspec.to_builtins(found.overall), "domains": msgspec.to_builtins(found.domains)}
