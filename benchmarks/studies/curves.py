"""Learning curves of the tasks that have public ones: reward by RL step, held-out success by stage, over seeds.

    python benchmarks/studies/curves.py reverse_text [--seeds 3] [--root runs/studies]
    python benchmarks/studies/curves.py guess_number

The recipe of that name is run as shipped. Writes docs/results/NAME.{json,md,png}, anew after each seed. The public
figures are of far larger models on GPUs (prime-rl's reverse-text: reward 0.05, after SFT and 20 steps of RL about 0.8;
tinker-cookbook's guess-number: about 0 to 0.8 in 20 steps) and say only what the task is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from runs import Arm, arguments, each, outcomes, paragraph, png, publish, reward, seconds, series, subplots, table

from temper.evaluation.outcome import success
from temper.store.run import RunDirectory

GOALS = {"reverse_text": 0.6, "guess_number": 0.8}  # held-out reward that has to be reached
MINUTES = {"reverse_text": 6.0, "guess_number": 11.0}


def main() -> None:
    parser = arguments(__doc__, seeds=3)
    parser.add_argument("name", choices=list(GOALS))
    given = parser.parse_args()
    name = given.name
    arms = [Arm(name, f"{name}-{seed}", MINUTES[name], (f"seed={seed}",)) for seed in range(given.seeds)]
    runs: list[RunDirectory] = []
    for run in each(arms, given):
        runs.append(run)
        stages = ["base", *(table["kind"] for table in run.recipe["stages"])]
        tree = {
            "goal": GOALS[name],
            "stages": {stage: measured(runs, stage) for stage in stages},
            "rl": [series(run, "reward").tolist() for run in runs],
            "recipe": run.recipe,
        }
        publish(name, tree, page(name, tree, given.seeds), draw(name, runs, tree), given.out)


def measured(runs: Sequence[RunDirectory], stage: str) -> dict[str, Any]:
    """Held-out reward and success by seed, success over all of them with its interval, seconds of the stage."""
    every = [replace(o, task=f"{seed}/{o.task}") for seed, run in enumerate(runs) for o in outcomes(run, stage)]
    return {
        "reward": [reward(run, stage) for run in runs],
        "success": [float(np.mean([o.success for o in outcomes(run, stage)])) for run in runs],
        "overall": success(every),
        "seconds": [seconds(run, "evaluate-base" if stage == "base" else stage) for run in runs],
    }


def page(name: str, tree: dict[str, Any], seeds: int) -> str:
    rows = []
    for stage, found in tree["stages"].items():
        overall = found["overall"]
        rows.append([
            stage, _span(found["reward"]), _span(found["success"]),
            f"{overall.mean:.3f} ({overall.low:.3f} to {overall.high:.3f})", f"{np.median(found['seconds']):.0f}",
        ])  # fmt: skip
    recipe = tree["recipe"]
    how = f"""`python benchmarks/studies/curves.py {name} --seeds {seeds}` made this page, [its JSON]({name}.json) and
        the plot: the recipe `{name}` on `{recipe["model"]["base"]}`, greedy on {recipe["evaluation"]["tasks"]} held-out
        tasks a seed. Seeds: {len(tree["rl"])}. The aim is a reward of {tree["goal"]:g} after RL."""
    return f"""# {name}

{paragraph(how)}

{table(["stage", "reward, lowest to highest seed", "success", "success over all, 95 %", "seconds, median"], rows)}

![reward by step of RL]({name}.png)
"""


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


def draw(name: str, runs: Sequence[RunDirectory], tree: dict[str, Any]) -> bytes:
    """Mean reward of each RL step by seed, their running mean, the held-out rewards beside it, and the aim."""
    figure, axes = subplots(7.5, 4.2)
    curves = np.array([series(run, "reward") for run in runs])
    steps = np.arange(1, curves.shape[1] + 1)
    for at, curve in enumerate(curves):
        axes.plot(steps, curve, color="#56b4e9", lw=0.8, label=None if at else "a seed, while training")
    axes.plot(steps, curves.mean(axis=0), color="#0072b2", lw=2, label="mean of the seeds")
    for stage, at, colour in (("sft", 0, "#e69f00"), ("rl", len(steps) + 1, "#d55e00")):
        held = tree["stages"][stage]["reward"]
        axes.plot([at] * len(held), held, "o", color=colour, label=f"held-out, greedy, after {stage}")
    axes.axhline(tree["goal"], color="#22282f", lw=1, ls=":", label=f"aim {tree['goal']:g}")
    axes.set(xlabel="step of RL", ylabel="reward", title=name, ylim=(0, 1.02))
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    return png(figure)


if __name__ == "__main__":
    main()
