"""Choosing tasks by what they teach: sampled tokens for the same number of useful groups, against uniform sampling.

    python benchmarks/studies/saving.py [--seeds 3] [--window 300] [--root runs/studies]

A useful group is one whose tries differ in reward. Both arms run the same RL stage from the same warm start over words
of two to five syllables (`variants.mixed_reverse`): once each task by turns, and once with the first `window` tasks
tried over and over, those first from which most is learnt a second. Compared are the tokens that were sampled up to
as many useful groups as both have. Writes docs/results/saving.json.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from runs import HERE, RESULTS, finished, outcomes, series, weights

from temper.store.run import RunDirectory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--window", type=int, default=300)
    parser.add_argument("--root", type=Path, default=Path("runs/studies"))
    parser.add_argument("--out", type=Path, default=RESULTS / "saving.json")
    parser.add_argument("--set", action="append", default=[], help="settings of every run, like stages.0.steps=20")
    given = parser.parse_args()
    base = weights(finished(str(HERE / "warm.toml"), "warm", given.root), "sft")
    found = []
    for seed in range(given.seeds):
        settings = [f"model.base={base.resolve()}", f"seed={seed}", *given.set]
        recipe = str(HERE / "saving.toml")
        uniform = finished(recipe, f"saving-uniform-{seed}", given.root, settings)
        window = f"stages.0.window={given.window}"
        chosen = finished(recipe, f"saving-window-{given.window}-{seed}", given.root, [*settings, window])
        found.append(compared(uniform, chosen))
        print(json.dumps(found[-1]))
    saved = [row["saved"] for row in found]
    tree = {"saved": [min(saved), float(np.median(saved)), max(saved)], "window": given.window, "seeds": found}
    given.out.write_text(json.dumps(tree, indent=2) + "\n", "utf-8")


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


if __name__ == "__main__":
    main()
