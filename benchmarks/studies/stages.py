"""Each stage and its own held-out measure, before and after, on one model in one recipe.

    python benchmarks/studies/stages.py [--recipe stages.toml] [--teacher teacher.toml] [--root runs/studies]

The teacher of `distill` is the same base with all weights fine-tuned (`teacher.toml`). Besides each stage's measure:
the verifier's view of preference alignment (held-out tasks that were won and lost by it, greedy) and the success before
and after RL. Intervals are 95 %, over held-out items. Writes docs/results/stages.{md,json,png}.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

from runs import HERE, Arm, arguments, each, intervals, outcomes, publish, table

from temper.evaluation.compare import compare
from temper.evaluation.statistics import Interval, wilson
from temper.store.run import RunDirectory


def main() -> None:
    parser = arguments(__doc__, seeds=1)
    parser.add_argument("--recipe", type=Path, default=HERE / "stages.toml")
    parser.add_argument("--teacher", type=Path, default=HERE / "teacher.toml")
    given = parser.parse_args()
    at = [stage["kind"] for stage in tables(given.recipe)].index("distill")
    teacher = Arm(str(given.teacher), given.teacher.stem, 6)
    start = (f"stages.{at}.teacher", teacher.name)
    arms = [
        Arm(str(given.recipe), f"{given.recipe.stem}-{seed}", 30, (f"seed={seed}",), start)
        for seed in range(given.seeds)
    ]
    runs = each([teacher, *arms], given)
    next(runs)
    found = []
    for run in runs:
        report = json.loads((run.path / "report.json").read_text("utf-8"))
        found.append({"measures": report["measures"], "success": changes(run, list(report["stages"]))})
        tree = {"model": report["model"], "seeds": found}
        rows = {
            f"{stage}, seed {seed}": Interval(100 * s["difference"], 100 * s["low"], 100 * s["high"], s["n"])
            for seed, one in enumerate(found)
            for stage, s in one["success"].items()
        }
        image = intervals(rows, "points of held-out success, against the stage before")
        publish("stages", tree, page(tree), image, given.out)


def tables(recipe: Path) -> list[dict[str, Any]]:
    from temper.core import config

    return config.load(recipe)["stages"]


def changes(run: RunDirectory, stages: list[str]) -> dict[str, Any]:
    """Success on held-out tasks at each stage against the one before; `win_rate` among tasks whose outcome changed."""
    found = {}
    for before, after in itertools.pairwise(stages):
        change = compare(outcomes(run, before), outcomes(run, after))
        won, lost = len(change.gained), len(change.lost)
        rate = wilson(won, won + lost)
        found[after] = {
            "difference": change.overall.mean, "low": change.overall.low, "high": change.overall.high,
            "n": change.overall.n, "won": won, "lost": lost, "win_rate": [rate.mean, rate.low, rate.high],
        }  # fmt: skip
    return found


def page(tree: dict[str, Any]) -> str:
    measures, success = [], []
    for seed, found in enumerate(tree["seeds"]):
        measures += [
            [str(seed), stage, m["metric"], m["better"], f"{m['before']:.4f}", f"{m['after']:.4f}",
             f"{m['difference']:+.4f} ({m['low']:+.4f} to {m['high']:+.4f})", str(m["n"])]
            for stage, m in found["measures"].items()
        ]  # fmt: skip
        for stage, s in found["success"].items():
            points = "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * s[end] for end in ("difference", "low", "high")))
            rate = "{:.2f} ({:.2f} to {:.2f})".format(*s["win_rate"])
            success.append([str(seed), stage, points, str(s["n"]), f"{s['won']} won, {s['lost']} lost", rate])
    return f"""# Each stage on its own held-out measure

`python benchmarks/studies/stages.py` made this page, [its JSON](stages.json) and the plot on `{tree["model"]}`.
Intervals are 95 %, over held-out items, paired.

{table(["seed", "stage", "measure", "better", "before", "after", "difference", "items"], measures)}

Success on held-out tasks, greedy, against the stage before; the win rate is by the verifier, among the tasks whose
outcome changed.

{table(["seed", "stage", "points", "tasks", "outcomes that changed", "win rate"], success)}

![success against the stage before](stages.png)
"""


if __name__ == "__main__":
    main()
