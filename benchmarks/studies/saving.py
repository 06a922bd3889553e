"""Choosing tasks by what they teach: sampled tokens for the same number of useful groups, against uniform sampling.

    python benchmarks/studies/saving.py [--seeds 3] [--window 300] [--root runs/studies]

A useful group is one whose tries differ in reward. Both arms run the same RL stage from the same warm start over words
of two to five syllables (`variants.mixed_reverse`): once each task by turns, and once with the first `window` tasks
tried over and over, those first from which most is learnt a second. Compared are the tokens that were sampled up to
as many useful groups as both have; the interval is over the steps of both. Writes docs/results/saving.{md,json,png},
anew after each seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from runs import HERE, WARM, Arm, arguments, each, intervals, outcomes, paragraph, publish, series, table

from temper.evaluation.statistics import Interval
from temper.store.run import RunDirectory

MINUTES = 1.5


def main() -> None:
    parser = arguments(__doc__, seeds=3, threads=1)
    parser.add_argument("--window", type=int, default=300)
    given = parser.parse_args()
    ways = {"uniform": (), f"window-{given.window}": (f"stages.0.window={given.window}",)}
    recipe, start = str(HERE / "saving.toml"), ("model.base", WARM.name)
    arms = [
        Arm(recipe, f"saving-{way}-{seed}", MINUTES, (f"seed={seed}", *settings), start)
        for seed in range(given.seeds)
        for way, settings in ways.items()
    ]
    runs = each([WARM, *arms], given)
    next(runs)
    pairs, found = [], []
    for uniform, chosen in zip(runs, runs, strict=True):
        pairs.append((uniform, chosen))
        found.append(compared(uniform, chosen))
        saved = [row["saved"] for row in found]
        every = interval(pairs)
        tree = {"saved": [min(saved), float(np.median(saved)), max(saved)], "interval": every}
        tree |= {"window": given.window, "seeds": found}
        rows = {f"seed {n}": interval([pair]) for n, pair in enumerate(pairs)} | {"all seeds": every}
        image = intervals(rows, "sampled tokens saved for the same useful groups, %", 100)
        publish("saving", tree, page(tree, given.seeds), image, given.out)


def compared(uniform: RunDirectory, chosen: RunDirectory) -> dict[str, float]:
    ends = {"base": (uniform, "base"), "uniform": (uniform, "rl"), "chosen": (chosen, "rl")}
    success = {f"success_{name}": float(np.mean([o.success for o in outcomes(*end)])) for name, end in ends.items()}
    return used(uniform, chosen) | success


def used(uniform: RunDirectory, chosen: RunDirectory) -> dict[str, float]:
    """`saved`: share of the uniform run's tokens that the other did not need for the same number of useful groups."""
    curves = {"uniform": spent(uniform), "chosen": spent(chosen)}
    goal = min(groups[-1] for groups, _ in curves.values())
    found = {"useful_groups": float(goal)}
    for name, (groups, tokens) in curves.items():
        found |= {f"useful_{name}": float(groups[-1]), f"tokens_{name}": float(np.interp(goal, groups, tokens))}
    return found | {"saved": 1 - found["tokens_chosen"] / found["tokens_uniform"]}


def spent(run: RunDirectory) -> tuple[np.ndarray, np.ndarray]:
    """Useful groups by step, summed up, and the tokens that had been sampled for what was trained by then."""
    useful = np.append(0, series(run, "groups") - series(run, "groups_without_gradient")).cumsum()
    tokens = np.append(0, series(run, "answer_tokens") * series(run, "samples")).cumsum()
    groups, first = np.unique(useful, return_index=True)
    return groups, tokens[first]


def interval(pairs: Sequence[tuple[RunDirectory, RunDirectory]], resamples: int = 2000) -> Interval:
    """1 - tokens a useful group, chosen over uniform; percentile bootstrap (Efron 1979) over the steps of the runs."""
    rng = np.random.default_rng(0)

    def cost(run: RunDirectory, goal: float) -> np.ndarray:
        groups, tokens = spent(run)
        upto = int(np.searchsorted(groups, goal)) + 1
        steps = np.stack([np.diff(groups[:upto]), np.diff(tokens[:upto])])
        useful, used = steps[:, rng.integers(0, steps.shape[1], (resamples, steps.shape[1]))].sum(2)
        return used / useful

    saved = []
    for pair in pairs:
        goal = min(spent(run)[0][-1] for run in pair)
        uniform, chosen = (cost(run, goal) for run in pair)
        saved.append(1 - chosen / uniform)
    low, high = np.percentile(np.mean(saved, axis=0), (2.5, 97.5))
    return Interval(float(np.mean([used(*pair)["saved"] for pair in pairs])), float(low), float(high), len(pairs))


def page(tree: dict[str, Any], seeds: int) -> str:
    every: Interval = tree["interval"]
    how = f"""`python benchmarks/studies/saving.py --seeds {seeds} --window {tree["window"]}` made this page, [its
        JSON](saving.json) and the plot. Uniform sampling takes each task once; choosing tries the first
        {tree["window"]} over and over, those first from which most is learnt a second. Tokens are counted up to as many
        useful groups (whose tries differ in reward) as both have."""
    result = f"""Saved: **{100 * every.mean:.0f} %** ({100 * every.low:.0f} to {100 * every.high:.0f}) of the sampled
        tokens, mean of {every.n} seeds; the interval is 95 %, over steps, and does not cover the seed."""
    rows = [
        [
            str(n), f"{row['useful_groups']:.0f}", f"{row['tokens_uniform']:.0f}", f"{row['tokens_chosen']:.0f}",
            f"{100 * row['saved']:.0f} %",
            *(f"{100 * row[f'success_{of}']:.0f} %" for of in ("base", "uniform", "chosen")),
        ]
        for n, row in enumerate(tree["seeds"])
    ]  # fmt: skip
    head = [
        "seed",
        "useful groups",
        "tokens, uniform",
        "tokens, chosen",
        "saved",
        "success before",
        "uniform",
        "chosen",
    ]
    return f"""# Choosing tasks by what they teach

{paragraph(how)}

{paragraph(result)}

{table(head, rows)}

![tokens saved, by seed](saving.png)
"""


if __name__ == "__main__":
    main()
