"""Asynchrony: what training on older samples costs, what the correction gives back, what it gains in wall time.

    python benchmarks/studies/asynchrony.py [--seeds 3] [--only "eta 1"] [--root runs/studies]

One budget for every arm: the same warm start (SFT on `reverse_text`), the same number of steps and of samples a step,
over a world whose answers take log-normal seconds (`variants.slow_reverse`). Arms: synchronous; eta 1, 2, 4 with the
default loss (clip around the policy that sampled, truncated importance weights), and without any correction (every
token weighs 1, as if it were sampled by the current policy); decoupled PPO with an interpolated proximal policy at
eta 4; and over-provisioning, which cancels groups that would become too old instead of waiting for them.

Writes docs/results/async.{md,json,png}, anew after each run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from runs import HERE, WARM, Arm, arguments, each, outcomes, paragraph, png, publish, seconds, series, subplots, table
from variants import slow_reverse

from temper.evaluation.compare import compare
from temper.evaluation.statistics import Interval
from temper.store.run import RunDirectory

SYNCHRONOUS = "synchronous"
NONE = 'stages.0.trainer.losses={pg = {kind = "cispo", low = 0.0, high = 0.0}}'
DECOUPLED = 'stages.0.update={proximal = "interpolated"}'
ARMS: dict[str, tuple[str, ...]] = {
    SYNCHRONOUS: (),
    **{f"eta {eta}": (f"stages.0.pacing.eta={eta}",) for eta in (1, 2, 4)},
    **{f"eta {eta}, no correction": (f"stages.0.pacing.eta={eta}", NONE) for eta in (1, 2, 4)},
    "eta 4, decoupled": ("stages.0.pacing.eta=4", DECOUPLED),
    "eta 1, cancelling": ("stages.0.pacing.eta=1", "stages.0.pacing.spare=0.5"),
}
MARGIN = 0.03  # success that may be given away for speed
MINUTES = 3.5


def main() -> None:
    parser = arguments(__doc__, seeds=3, threads=1)
    parser.add_argument("--only", action="append", choices=list(ARMS), help="arms to run; all by default")
    given = parser.parse_args()
    order = [(arm, seed) for seed in range(given.seeds) for arm in dict.fromkeys([SYNCHRONOUS, *(given.only or ARMS)])]
    runs = each([WARM, *(asked(arm, seed) for arm, seed in order)], given)
    next(runs)
    found: dict[str, list[RunDirectory]] = {}
    for done, ((arm, _), run) in enumerate(zip(order, runs, strict=True), 1):
        found.setdefault(arm, []).append(run)
        rows = {arm: measured(runs, found[SYNCHRONOUS]) for arm, runs in found.items()}
        recipe = {key: found[SYNCHRONOUS][0].recipe[key] for key in ("domains", "stages", "evaluation")}
        tree = {"arms": rows, "recommended": recommended(rows), "recipe": recipe, "seeds": given.seeds}
        tree |= {"margin": MARGIN, "runs": [done, len(order)]}
        publish("async", tree, page(tree), draw(found), given.out)


def asked(arm: str, seed: int) -> Arm:
    name = f"asynchrony-{re.sub('[^a-z0-9]+', '-', arm)}-{seed}"
    start = ("model.base", WARM.name)
    return Arm(str(HERE / "asynchrony.toml"), name, MINUTES, (f"seed={seed}", *ARMS[arm]), start)


def measured(runs: Sequence[RunDirectory], synchronous: Sequence[RunDirectory]) -> dict[str, Any]:
    """Figures of an arm over its seeds: three numbers are lowest, median, highest. Synchronous runs may be of more."""
    synchronous = synchronous[: len(runs)]
    took = [seconds(run, "rl") for run in runs]
    against = [seconds(run, "rl") for run in synchronous]
    after = [np.mean([o.success for o in outcomes(run, "rl")]) for run in runs]
    return {
        "success": _three(after),
        "base": float(np.mean([o.success for run in runs for o in outcomes(run, "base")])),
        "against_synchronous": _difference(synchronous, runs),
        "reward_last_5": _three([series(run, "reward")[-5:].mean() for run in runs]),
        "seconds": _three(took),
        "speed": _three([b / a for a, b in zip(took, against, strict=True)]),
        "age_mean": float(np.mean([np.nanmean(series(run, "age")) for run in runs])),
        "age_max": max(float(np.nanmax(series(run, "age_max"))) for run in runs),
        "kept_over_started": _three([_kept(run) for run in runs]),
        "cancelled_groups": _three([sum(e.what == "cancelled" for e in run.events) for run in runs]),
        "kl_to_sampler": float(np.mean([np.nanmean(series(run, "kl_behaviour")) for run in runs])),
        "ratio_max": max(float(np.nanmax(series(run, "ratio_max"))) for run in runs),
    }


def recommended(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The fastest arm whose success is at most MARGIN below the synchronous one's, by the lower end of its interval."""
    good = {arm: row for arm, row in rows.items() if row["against_synchronous"].low >= -MARGIN}
    return max(good, key=lambda arm: good[arm]["speed"][1], default=SYNCHRONOUS)


def _kept(run: RunDirectory) -> float:
    """Mean seconds of the trained samples over those of all that were started; 1 where none was cancelled."""
    said = [e.why for e in run.events if e.what == "cancelled"]
    return float(re.search(r"is ([\d.]+) so far", said[-1])[1]) if said else 1.0  # type: ignore[index]


def _difference(before: Sequence[RunDirectory], after: Sequence[RunDirectory]) -> Interval:
    """Success against the synchronous runs, paired by seed and task."""
    old, new = (
        [replace(o, task=f"{seed}/{o.task}") for seed, run in enumerate(runs) for o in outcomes(run, "rl")]
        for runs in (before, after)
    )
    return compare(old, new).overall


def _three(values: Sequence[Any]) -> list[float]:
    return [float(f(values)) for f in (np.min, np.median, np.max)]


def page(tree: Mapping[str, Any]) -> str:
    rows, best, recipe = tree["arms"], tree["recommended"], tree["recipe"]
    stage, pacing = recipe["stages"][0], recipe["stages"][0]["pacing"]
    head = ["arm", "success", "against synchronous, points", "wall time, s", "speed", "age, mean and max"]
    head += ["kept over started", "KL to the sampler", "largest ratio"]
    body = []
    for arm, row in rows.items():
        change = row["against_synchronous"]
        points = [f"{100 * end:+.1f}" for end in (change.mean, change.low, change.high)]
        body.append([
            f"**{arm}**" if arm == best else arm,
            _spread(row["success"], 100, " %"),
            "" if arm == SYNCHRONOUS else f"{points[0]} ({points[1]} to {points[2]})",
            _spread(row["seconds"]),
            f"{row['speed'][1]:.2f}",
            f"{row['age_mean']:.2f}, {row['age_max']:.0f}",
            f"{row['kept_over_started'][1]:.2f}",
            f"{row['kl_to_sampler']:.1e}",
            f"{row['ratio_max']:.1f}",
        ])  # fmt: skip
    base = 100 * rows[SYNCHRONOUS]["base"]
    how = f"""`python benchmarks/studies/asynchrony.py --seeds {tree["seeds"]}` made this page, [its JSON](async.json)
        and the plot. A model of 1 M parameters that SFT has taught to reverse {base:.0f} % of held-out words goes on
        by RL, on one budget: {stage["steps"]} steps of {pacing["batch"]} samples ({pacing["group"]} tries of a
        task). The world takes log-normal seconds for an answer (median {slow_reverse.MEDIAN}, spread
        {slow_reverse.SPREAD}). Runs: {tree["runs"][0]} of {tree["runs"][1]}. Success is greedy, on
        {recipe["evaluation"]["tasks"]} held-out tasks a seed."""
    terms = """Spans are lowest to highest seed; differences have 95 % intervals, paired by seed and task, which do not
        cover the seed. Bias: *kept over started* is the mean time of the samples that were trained over that of all
        that were started (1: no long one was lost); *KL to the sampler* is how far the current policy is from the
        one that sampled."""
    rule = f"""By the rule "the fastest arm that loses at most {100 * MARGIN:.0f} points, by the lower end of its
        interval": **{best}**."""
    return f"""# Synchronous against asynchronous training

{paragraph(how)}

{paragraph(terms)}

{table(head, body)}

{paragraph(rule)}

![reward by step, and success against wall time](async.png)
"""


def _spread(three: Sequence[float], times: float = 1, unit: str = "") -> str:
    low, middle, high = (times * value for value in three)
    return f"{middle:.0f}{unit} ({low:.0f} to {high:.0f})"


def draw(found: Mapping[str, Sequence[RunDirectory]]) -> bytes:
    """Left: mean reward by step, running over 5. Right: final success against the wall time of the stage."""
    from matplotlib import colormaps

    figure, (left, right) = subplots(11, 4.4, 2)
    for at, (arm, runs) in enumerate(found.items()):
        colour, dashes = colormaps["tab10"](at % 10), "--" if "no correction" in arm else "-"
        curve = np.mean([series(run, "reward") for run in runs], axis=0)
        smooth = np.convolve(curve, np.ones(5) / 5, "valid")
        left.plot(np.arange(len(smooth)) + 3, smooth, dashes, color=colour, lw=1.6, label=arm)
        took = [seconds(run, "rl") for run in runs]
        right.plot(took, [100 * np.mean([o.success for o in outcomes(run, "rl")]) for run in runs], "o", color=colour)
    left.set(xlabel="step", ylabel="reward while training (mean of 5 steps)")
    right.set(xlabel="wall time of the RL stage, s", ylabel="held-out success after it, %")
    left.legend(frameon=False, fontsize=7)
    return png(figure)


if __name__ == "__main__":
    main()
