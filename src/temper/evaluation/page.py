"""report.md from the tree of report.json: the result first, then the domains, then what limits it.

Says what the numbers show and no more: an interval that includes zero is said to, and so is a domain that fell.
"""

from __future__ import annotations

from typing import Any

import msgspec

from temper.evaluation.sections import Section, plain, section, table

Report = dict[str, Any]


def markdown(report: Report) -> str:
    parts = [_headline(report), "![success by stage, and reward while training](report.png)", _domains(report)]
    parts += [_alarms(report), _measures(report), _counts(report), _spent(report)]
    parts += [_reading(report), _exceptions(report), _settings(report)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline(report: Report) -> str:
    stages = list(report["stages"])
    last = report["stages"][stages[-1]]["overall"]
    title = f"# {report['name']}: {_percent(last['success'])} of held-out tasks"
    body = f"{report['model']} completes {_rate(last)} of {last['n']} held-out tasks at stage `{stages[-1]}`."
    if len(stages) < 2:
        return f"{title}\n\n{body}"
    first = report["stages"][stages[0]]["overall"]
    gain = report["gain"][f"{stages[0]}_to_{stages[-1]}"]
    title = f"# {report['name']}: {_percent(first['success'])} → {_percent(last['success'])} of held-out tasks"
    lines = [f"**{body}** At stage `{stages[0]}` it was {_rate(first)}."]
    lines.append(f"The change, paired by task, is **{_points(gain)}**{_caution(gain)}.")
    if len(stages) > 2:
        step = report["gain"][f"{stages[-2]}_to_{stages[-1]}"]
        lines.append(f"Stage `{stages[-1]}` alone, after `{stages[-2]}`: {_points(step)}{_caution(step)}.")
    return f"{title}\n\n" + " ".join(lines)


def _domains(report: Report) -> str:
    stages, gains = report["stages"], _shown_gains(report)
    names = sorted({name for stage in stages.values() for name in stage["domains"]})
    rows = [["domain", "tasks", *stages, *(gain.replace("_to_", " → ") for gain in gains)]]
    for name in names:
        found = [stage["domains"].get(name) for stage in stages.values()]
        tasks = str(max(s["n"] for s in found if s))
        changes = [report["gain"][gain]["domains"].get(name) for gain in gains]
        rows.append(
            [name, tasks, *(_rate(s) if s else "–" for s in found), *(_points(c) if c else "–" for c in changes)]
        )
    overall = [stage["overall"] for stage in stages.values()]
    total = str(max(s["n"] for s in overall))
    rows.append(["**all tasks**", total, *map(_rate, overall), *(_points(report["gain"][gain]) for gain in gains)])
    rows.append(["mean of domains", "", *(_percent(s["macro"]) for s in stages.values()), *("" for _ in gains)])
    for k in max((s["pass_at"] for s in overall), key=len):
        found = [_percent(s["pass_at"][k]) if k in s["pass_at"] else "–" for s in overall]
        rows.append([f"solved by one of {k} answers", "", *found, *("" for _ in gains)])
    return f"## By domain\n\n{table(rows)}\n\n{_fallen(report, gains)}".rstrip()


def _fallen(report: Report, gains: list[str]) -> str:
    fell = [
        f"{name} ({gain.replace('_to_', ' → ')}: {_points(change)}{_caution(change)})"
        for gain in gains
        for name, change in report["gain"][gain]["domains"].items()
        if change["mean"] < 0
    ]
    if not gains:
        return ""
    return f"Fell: {', '.join(fell)}." if fell else "No domain fell."


def _alarms(report: Report) -> str:
    return "\n".join(["## Alarms\n", *(f"- {plain(alarm)}" for alarm in report["alarms"])]) if report["alarms"] else ""


def _measures(report: Report) -> str:
    if not report.get("measures"):
        return ""
    rows = [["stage", "held-out measure", "better", "items", "before", "after", "change"]]
    for name, m in report["measures"].items():
        change = f"{m['difference']:+.4f} ({m['low']:+.4f} to {m['high']:+.4f})"
        rows.append([name, m["metric"], m["better"], str(m["n"]), f"{m['before']:.4f}", f"{m['after']:.4f}", change])
    return f"## Each stage's own measure\n\n{table(rows)}"


def _counts(report: Report) -> str:
    rows = [["stage", "rollouts", "parse failures", "masked: fault of ours", "masked: task or verifier", "run again"]]
    for name, stage in report["stages"].items():
        all_ = stage["overall"]
        masked = [_by_domain(stage, "infra"), _by_domain(stage, "invalid")]
        share = _percent(all_["malformed"] / all_["rollouts"])
        rows.append([name, str(all_["rollouts"]), f"{all_['malformed']} ({share})", *masked, str(all_["retried"])])
    return f"## Counted apart\n\n{table(rows)}"


def _by_domain(stage: Report, status: str) -> str:
    where = [f"{name} {s['masked'][status]}" for name, s in stage["domains"].items() if s["masked"][status]]
    return f"{stage['overall']['masked'][status]}" + (f" ({', '.join(where)})" if where else "")


def _spent(report: Report) -> str:
    found = msgspec.convert(report["spent"], tuple[Section, ...])
    story = "Steps, decisions with their reasons, and what was biased: [why.html](why.html), or `temper why`."
    return "\n\n".join([*map(section, found), story]) if found else ""


def _reading(report: Report) -> str:
    lines = [
        "A task is completed when its verifier gives the full score; parts of a solution count as nothing here.",
        "Intervals are 95 %: Wilson's for a rate; Student's over tasks for a change, which for rates counts two tasks "
        "more, one gained and one lost (Bonett and Price 2012). They cover the choice of tasks and the sampling of "
        "answers, not the luck of a training seed: this is one run.",
        "Parse failures are failures, included in the rates. Masked rollouts are in no rate.",
    ]
    if "base" in report["stages"] and report["examples"]:
        lines.append(f"The base model had {report['examples']} solved examples in its prompt; the others had none.")
    return "## How to read this\n\n" + "\n".join(f"- {line}" for line in lines)


def _exceptions(report: Report) -> str:
    if not report["unaudited"]:
        return ""
    names = ", ".join(f"`{name}`" for name in report["unaudited"])
    return (
        f"## Exceptions\n\nThe recipe lets these train and count without a current error card (law 7): {names}. "
        "How often their verifiers accept a wrong answer or refuse a right one has not been measured, "
        "so the rates may be off by that."
    )


def _settings(report: Report) -> str:
    facts = {"commit": report["commit"], "wall clock": f"{report['wall_s'] / 60:.1f} min", **report["settings"]}
    return "## This run\n\n" + "\n".join(f"- {name}: {value}" for name, value in facts.items())


def _shown_gains(report: Report) -> list[str]:
    """The whole way, and the last step where that is another."""
    stages = list(report["stages"])
    return list(dict.fromkeys(f"{a}_to_{stages[-1]}" for a in (stages[0], stages[-2]))) if len(stages) > 1 else []


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share == share else "–"


def _rate(summary: Report) -> str:
    if not summary["n"]:
        return "–"
    return f"{_percent(summary['success'])} ({100 * summary['low']:.1f} to {100 * summary['high']:.1f})"


def _points(change: Report) -> str:
    if not change["n"]:
        return "–"
    return f"{100 * change['mean']:+.1f} points ({100 * change['low']:+.1f} to {100 * change['high']:+.1f})"


def _caution(change: Report) -> str:
    return ", which these tasks cannot tell from zero" if change["low"] <= 0 <= change["high"] else ""
