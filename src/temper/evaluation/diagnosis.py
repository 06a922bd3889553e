"""What a run's record says about how it went: where the time went, what held it up, what was decided and why.

Reads a run directory, live or dead, and draws no conclusion that the numbers do not. The forms that sections take are
in `sections`. Success on held-out tasks is the report's (`scorecard`), not this.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from temper.core.trace import Event
from temper.evaluation.sections import Section
from temper.scheduling.ledger import POOLS, STAGES, Ledger, Spent
from temper.store.run import Metrics, RunDirectory

# of a step
MEASURES = ("loss", "reward", "heldout", "entropy", "answer_tokens", "age", "age_max", "grad_norm", "seconds")
SHOWN_STEPS, SHOWN_REASONS, SHOWN_TASKS = 12, 3, 50
_LONGEST = 200  # characters of a reason
_ROUTINE = ("progress", "part", "process", "loading", "ready", "settings", "success", "held-out", "trained", "rollout")


def diagnosis(run: RunDirectory) -> list[Section]:
    """The story of a run, most important first. Sections without anything to say are left out."""
    events = list(run.events)
    metrics = {(m.stage, m.step): m for m in run.metrics}  # a step that was taken again after a crash counts once
    steps = [e for e in events if e.what == "trained"]
    found = [
        Section(title=str(run.recipe.get("name") or run.path.name), lines=_state(events)),
        *spending(run),
        _timeline(steps, list(metrics.values())),
        _decisions(events),
        _quarantined(events),
        _bias(run, events, steps),
    ]
    return [section for section in found if section.lines or section.rows]


def elapsed(events: Iterable[Event]) -> dict[str, float]:
    """Seconds by part of the run, the time between processes left out, that before their start counted."""
    found: dict[str, float] = {}
    part, last = "loading", 0.0
    for event in events:
        if event.when < last:  # another process took up the run
            part, last = "loading", 0.0
        found[part] = found.get(part, 0.0) + event.when - last + event.data.get("seconds_before", 0.0)
        last = event.when
        if event.what == "part":
            part = event.whom if event.why == "started" else "between"
    return found


def spending(run: RunDirectory) -> tuple[Section, ...]:
    """How busy the workers were in each part of the run; seconds, tokens and money by stage and domain."""
    events = list(run.events)
    whole, parts = Ledger(run.recipe.get("prices")), defaultdict[str, Ledger](Ledger)
    for one in run.log("spent", Spent):
        whole.add(one)
        parts[one.part].add(one)
    workers = next((e.data["workers"] for e in reversed(events) if "workers" in e.data), {})
    took = elapsed(events)
    head = ("part", "seconds", *(f"{pool} busy" for pool in workers), "of that", "worth widening")
    rows = [_busy(name, parts[name], workers, took[name]) for name in took if parts[name].domains and took[name]]
    moved = ", ".join(f"{stage} {size / 2**20:,.1f} MiB" for stage, size in whole.bytes.items())
    found = (
        Section(title="Where the time went", lines=(f"Moved: {moved}.",) * bool(moved), rows=(head, *rows)),
        Section(title="Spent by domain", rows=tuple(_by_domain(whole))),
    )
    return found if rows else ()


def _busy(part: str, ledger: Ledger, workers: dict[str, int], seconds: float) -> tuple[str, ...]:
    """One part of the run: how busy each pool was, and what widening the busiest would bring."""
    shares = [f"{min(1.0, ledger.stage(pool) / (n * seconds)):.0%} of {n}" for pool, n in workers.items()]
    inside = ", ".join(f"{s} {ledger.stage(s):,.1f}" for s in POOLS["compute"] if ledger.stage(s))
    suggestion = ledger.suggestion(workers, seconds) if any(ledger.tokens.values()) else None
    return part, f"{seconds:,.1f}", *shares, inside, str(suggestion or "")


def _by_domain(ledger: Ledger) -> Iterable[tuple[str, ...]]:
    stages = [stage for stage in STAGES if ledger.stage(stage)]
    prices = ledger.prices
    yield "domain", *(f"{stage} s" for stage in stages), "tokens", *(["money"] if prices else [])
    for domain in ledger.domains:
        seconds = [f"{ledger.share(stage, domain):,.1f}" for stage in stages]
        money = [f"{ledger.cost(domain):.4g}"] if prices else []
        yield domain or "(shared)", *seconds, f"{ledger.tokens.get(domain, 0):,}", *money
    tokens = sum(ledger.tokens.values())
    yield "all", *(f"{ledger.stage(s):,.1f}" for s in stages), f"{tokens:,}", *([""] if prices else [])
    if prices:
        spent = [f"{ledger.stage(stage) * prices.get(stage, 0.0):.4g}" for stage in stages]
        yield "money", *spent, f"{tokens * prices.get('tokens', 0.0):.4g}", f"{ledger.money:.4g}"


def _state(events: Sequence[Event]) -> tuple[str, ...]:
    took = elapsed(events)
    processes = sum(e.what == "process" for e in events)
    last = next((e for e in reversed(events) if e.what in ("part", "stopped", "finished")), None)
    ends = {
        "stopped": "It stopped in {0.whom}: {0.why}",
        "finished": "It finished.",
        "part": "No end is recorded: it runs, or was killed. Its last part: {0.whom}, {0.why}.",
    }
    lines = [ends.get(last.what, ends["part"]).format(last)] if last else []
    lines.append(f"{sum(took.values()):,.0f} s in {processes} process{'es' * (processes != 1)}.")
    lines += [f"Alarm in {e.whom} at {e.when:,.0f} s: {e.why}" for e in events if e.what == "alarm"]
    return tuple(line[:_LONGEST] for line in lines)


def _timeline(steps: Sequence[Event], metrics: Sequence[Metrics]) -> Section:
    """Training steps: evenly chosen ones as rows, all of them as curves."""
    when = {(e.whom, e.data.get("version")): e.when for e in steps}
    every = max(1, math.ceil(len(metrics) / SHOWN_STEPS))
    chosen = [*metrics[:-1:every], *metrics[-1:]]
    shown = [key for key in MEASURES if any(key in m.values for m in chosen)]
    rows = [("stage", "step", "at s", *shown)] if chosen else []
    for m in chosen:
        at = when.get((m.stage, m.step))
        cells = [f"{m.values[key]:.4g}" if key in m.values else "" for key in shown]
        rows.append((m.stage, str(m.step), "" if at is None else f"{at:,.0f}", *cells))
    curves: dict[str, list[tuple[float, float]]] = {}
    for m in metrics:
        for key in MEASURES:
            if math.isfinite(m.values.get(key, math.nan)):
                curves.setdefault(f"{m.stage}: {key}", []).append((float(m.step), m.values[key]))
    return Section(title="Steps", rows=tuple(rows), curves={k: v for k, v in curves.items() if len(v) > 1})


def _decisions(events: Sequence[Event]) -> Section:
    """Every kind of event that is a decision: how often, and its commonest reasons, their numbers left out."""
    reasons: dict[str, Counter[str]] = {}
    for event in events:
        if event.what not in _ROUTINE and event.why:
            words = re.sub(r"\d[\d,.]*", "#", event.why)[:_LONGEST]
            reasons.setdefault(event.what, Counter())[words] += 1
    rows = [("decision", "times", "commonest reasons")]
    for what, why in sorted(reasons.items(), key=lambda item: -item[1].total()):
        common = "; ".join(f"{n} × {words}" for words, n in why.most_common(SHOWN_REASONS))
        rows.append((what, str(why.total()), common))
    return Section(title="Decisions", rows=tuple(rows) if len(rows) > 1 else ())


def _quarantined(events: Sequence[Event]) -> Section:
    found = [e for e in events if e.what == "quarantined"]
    rows = [("task", "rollout", "diagnosis")]
    rows += [(e.data.get("task", ""), e.whom, e.why[:_LONGEST]) for e in found[:SHOWN_TASKS]]
    more = (f"{len(found) - SHOWN_TASKS} more are in the record.",) if len(found) > SHOWN_TASKS else ()
    return Section(title="Quarantined tasks", lines=more, rows=tuple(rows) if found else ())


def _bias(run: RunDirectory, events: Sequence[Event], steps: Sequence[Event]) -> Section:
    """What was trained against what was sampled and what was wanted: shares by domain, lengths."""
    trained = {group for step in steps for group in step.data.get("groups", ())}
    sampled: dict[str, list[int]] = {}
    used: dict[str, list[int]] = {}
    for event in events:
        number = re.match(r"rl-(\d+)-", event.whom)
        if event.what == "rollout" and number and "tokens" in event.data:
            sampled.setdefault(event.data["domain"], []).append(event.data["tokens"])
            if int(number[1]) in trained:
                used.setdefault(event.data["domain"], []).append(event.data["tokens"])
    every, learnt = ([n for ns in by.values() for n in ns] for by in (sampled, used))
    if not learnt:
        return Section(title="Bias")
    wanted: dict[str, Any] = {d["kind"]: d.get("share", 1.0) for d in run.recipe.get("domains", ())}
    weight = sum(wanted.values()) or 1.0
    rows = [("domain", "share wanted", "of trained tokens", "rollouts", "trained", "mean tokens", "of the trained")]
    for domain, tokens in sorted(sampled.items()):
        mine = used.get(domain, [])
        rows.append(
            (domain, f"{wanted.get(domain, 0) / weight:.1%}", f"{sum(mine) / sum(learnt):.1%}", str(len(tokens)),
             str(len(mine)), f"{_mean(tokens):.1f}", f"{_mean(mine):.1f}" if mine else "–")
        )  # fmt: skip
    bias = _mean(learnt) / _mean(every) - 1
    line = f"Trained rollouts are {bias:+.1%} longer than all {len(every)} that were graded: the bias of length."
    return Section(title="Bias of length and domain", lines=(line,), rows=tuple(rows))


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
