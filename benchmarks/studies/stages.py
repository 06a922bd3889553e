"""Each stage and its own held-out measure, before and after, on one model in one recipe.

    python benchmarks/studies/stages.py [--recipe stages.toml] [--teacher teacher.toml] [--root runs/studies]

The teacher of `distill` is the same base with all weights fine-tuned (`teacher.toml`). Besides each stage's measure:
the verifier's view of preference alignment (held-out tasks that were won and lost by it, greedy) and the success before
and after RL. Intervals are 95 %, over held-out items. Writes docs/results/stages.{md,json}.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

from runs import HERE, RESULTS, finished, outcomes, table, weights

from temper.evaluation.compare import compare
from temper.evaluation.statistics import wilson
from temper.store.run import RunDirectory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, default=HERE / "stages.toml")
    parser.add_argument("--teacher", type=Path, default=HERE / "teacher.toml")
    parser.add_argument("--root", type=Path, default=Path("runs/studies"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], help="settings of both runs, like model.base=tiny:")
    given = parser.parse_args()
    teacher = finished(str(given.teacher), given.teacher.stem, given.root, given.set, given.threads)
    places = [s["kind"] for s in tables(given.recipe)]
    setting = f"stages.{places.index('distill')}.teacher={weights(teacher, 'sft').resolve()}"
    run = finished(str(given.recipe), given.recipe.stem, given.root, [setting, *given.set], given.threads)
    report = json.loads((run.path / "report.json").read_text("utf-8"))
    tree = {"model": report["model"], "measures": report["measures"], "success": changes(run, list(report["stages"]))}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "stages.json").write_text(json.dumps(tree, indent=2) + "\n", "utf-8")
    (given.out / "stages.md").write_text(page(tree), "utf-8")


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
    measures = [
        [stage, m["metric"], m["better"], f"{m['before']:.4f}", f"{m['after']:.4f}",
         f"{m['difference']:+.4f} ({m['low']:+.4f} to {m['high']:+.4f})", str(m["n"])]
        for stage, m in tree["measures"].items()
    ]  # fmt: skip
    success = []
    for stage, s in tree["success"].items():
        points = "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * s[end] for end in ("difference", "low", "high")))
        rate = "{:.2f} ({:.2f} to {:.2f})".format(*s["win_rate"])
        success.append([stage, points, str(s["n"]), f"{s['won']} won, {s['lost']} lost", rate])
    return f"""# Each stage on its own held-out measure

`python benchmarks/studies/stages.py` made this page and [its JSON](stages.json) on `{tree["model"]}`, one run.
Intervals are 95 %, over held-out items, paired.

{table(["stage", "measure", "better", "before", "after", "difference", "items"], measures)}

Success on held-out tasks, greedy, against the stage before; the win rate is by the verifier, among the tasks whose
outcome changed.

{table(["stage", "points", "tasks", "outcomes that changed", "win rate"], success)}
"""


if __name__ == "__main__":
    main()
