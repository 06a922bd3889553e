"""Transfer: on one budget, training on 1, 4 and all leaves; success on leaves and on families that were not trained.

    python benchmarks/studies/transfer.py [--seeds 1] [--set model.base=tiny:] [--root runs/studies]

A leaf is a domain at a level, written `domain@level`. Every arm has the same demonstrations and the same RL samples,
spread evenly over its leaves. Each result is evaluated, like the untrained base, without examples, on: the first
arm's leaf (which all arms train), held-out leaves (trained families at a level that no arm trains), and held-out
families. Differences to the base and between arms are paired by task, with 95 % intervals. Domains whose packages are
missing here are left out, and the page says so. Writes docs/results/transfer.{md,json,png}, anew after each arm.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from runs import HERE, Arm, arguments, each, intervals, outcomes, paragraph, publish, table

from temper.core import registry
from temper.core.errors import MissingError
from temper.evaluation.compare import compare
from temper.evaluation.outcome import Outcome, success
from temper.evaluation.statistics import Interval
from temper.runs import recipe as recipes
from temper.runs.assess import assess
from temper.runs.workshop import opened
from temper.store.run import RunDirectory
from temper.training import trainer
from temper.verifiers.audit import cards

FOUR = ["arithmetic@1", "code_repair@1", "sql@1", "tools@1"]
LEAVES = ["arithmetic@2", "code_repair@2", "sql@2", "tools@2"]
FAMILIES = ["guess_number@1", "table_questions@1"]
MINUTES = 17.0  # of an arm, with what is asked after it


def main() -> None:
    parser = arguments(__doc__, seeds=1)
    parser.add_argument("--four", nargs="+", default=FOUR, help="leaves of the second arm; the first is that of one")
    parser.add_argument("--every", nargs="+", help="leaves of the third arm; level 1 of all that is fit to train")
    parser.add_argument("--leaves", nargs="+", default=LEAVES, help="held-out leaves")
    parser.add_argument("--families", nargs="+", default=FAMILIES, help="leaves of held-out families")
    parser.add_argument("--tasks", type=int, default=100, help="held-out tasks of each leaf")
    given = parser.parse_args()
    every, left_out = catalogue({leaf.partition("@")[0] for leaf in given.families})
    every = given.every or every
    arms = {"1 leaf": given.four[:1], f"{len(given.four)} leaves": given.four, f"{len(every)} leaves": every}
    asked = {"the trained leaf": given.four[:1], "held-out leaves": given.leaves, "held-out families": given.families}
    boxes = f'sandbox={{kind = "local", paths = ["{sys.prefix}"]}}'  # some leaves need packages in them
    runs = each([training(leaves, seed, boxes) for seed in range(given.seeds) for leaves in arms.values()], given)
    found: dict[str, dict[str, list[Outcome]]] = {}
    for seed in range(given.seeds):
        for arm, leaves in {"base": [], **arms}.items():
            trained = next(runs) if leaves else None
            for what, leaves_ in asked.items():
                path = given.root / f"transfer-{len(leaves)}-{seed}-{what.replace(' ', '-')}"
                count = f"evaluation.tasks={given.tasks * len(leaves_)}"
                own = [boxes, f"seed={seed}", *given.set, f"domains={domains(leaves_)}", count]
                marked = [
                    msgspec.structs.replace(o, task=f"{seed}/{o.task}")
                    for o in outcomes(evaluated(trained, path, own), "after")
                ]
                found.setdefault(arm, {}).setdefault(what, []).extend(marked)
            if trained:
                tree = {"arms": arms, "asked": asked, "left_out": left_out, "seeds": given.seeds}
                tree["results"] = compared(found)
                publish("transfer", tree, page(tree), draw(tree["results"]), given.out)


def training(leaves: Sequence[str], seed: int, boxes: str) -> Arm:
    settings = (boxes, f"seed={seed}", f"domains={domains(leaves)}")
    return Arm(str(HERE / "transfer.toml"), f"transfer-{len(leaves)}-{seed}", MINUTES, settings)


def catalogue(without: set[str]) -> tuple[list[str], list[str]]:
    """All leaves of level 1 that may be trained on here, apart from the held-out families; and those that may not."""
    fit, unfit = [], []
    for kind in sorted(set(registry.names("domains")) - without):
        try:
            problem = cards.problem(kind)
        except MissingError as error:
            problem = str(error)
        (unfit if problem else fit).append(f"{kind}@1")
    return fit, unfit


def domains(leaves: Sequence[str]) -> str:
    """Leaves as the inline tables of a recipe's `domains`."""
    tables = (f'{{kind = "{kind}", level = {level}}}' for kind, _, level in (leaf.partition("@") for leaf in leaves))
    return f"[{', '.join(tables)}]"


def evaluated(trained: RunDirectory | None, path: Path, settings: Sequence[str]) -> RunDirectory:
    """Held-out tasks, answered by what a run has trained, or by the base; kept in a directory of its own."""
    recipe = msgspec.structs.replace(recipes.load(str(HERE / "transfer.toml"), settings), stages=())
    there = (path / "recipe.json").exists()
    with RunDirectory.open(path) if there else RunDirectory.create(path, recipe) as run:
        asyncio.run(_assess(recipe, run, trained))
    return RunDirectory.view(path)


async def _assess(recipe: recipes.Recipe, run: RunDirectory, trained: RunDirectory | None) -> None:
    if len(list(run.log("outcomes", Outcome))) == recipe.evaluation.tasks:
        return
    async with opened(recipe, run, []) as shop:
        if trained is not None:
            folder = trained.latest("rl").folder
            assert folder is not None
            learner = trainer.Trainer(shop.policy, trainer.Config())
            await shop.computed(learner.load, folder / "trainer")
            await shop.publish(learner.version)
        await assess(shop, "after")


def compared(found: dict[str, dict[str, list[Outcome]]]) -> dict[str, Any]:
    """Of each arm and question: success, and the difference to the base and to the arm before."""
    results: dict[str, Any] = {}
    arms = list(found)
    for at, arm in enumerate(arms):
        for what, here in found[arm].items():
            cell = {"success": msgspec.to_builtins(success(here))}
            for name, other in (("to_base", arms[0]), ("to_the_arm_before", arms[max(0, at - 1)])):
                cell[name] = msgspec.to_builtins(compare(found[other][what], here).overall)
            results.setdefault(what, {})[arm] = cell
    return results


def draw(results: dict[str, Any]) -> bytes:
    rows = {
        f"{what}, {arm}": msgspec.convert(cell["to_base"], Interval)
        for what, arms in results.items()
        for arm, cell in arms.items()
        if arm != "base"
    }
    return intervals(rows, "points of success, against the base", 100)


def page(tree: dict[str, Any]) -> str:
    rows = []
    for what, arms in tree["results"].items():
        for arm, cell in arms.items():
            s = cell["success"]
            row = [what, arm, f"{100 * s['mean']:.1f} % ({100 * s['low']:.1f} to {100 * s['high']:.1f})", str(s["n"])]
            for name in ("to_base", "to_the_arm_before"):
                d = cell[name]
                points = "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * d[end] for end in ("mean", "low", "high")))
                row.append("" if arm == "base" else points)
            rows.append(row)
    lists = [f"- {arm}: {', '.join(leaves)}" for arm, leaves in (tree["arms"] | tree["asked"]).items()]
    how = f"""`python benchmarks/studies/transfer.py --seeds {tree["seeds"]}` made this page and [its
        JSON](transfer.json) and the plot. One budget for every arm, spread over its leaves. Intervals are 95 %, over
        tasks, and do not cover the seed."""
    return f"""# Transfer

{paragraph(how)}

{table(["asked", "trained on", "success", "tasks", "points to the base", "to the arm before"], rows)}

{chr(10).join(lists)}
- left out here: {", ".join(tree["left_out"]) or "none"}

![success against the base](transfer.png)
"""


if __name__ == "__main__":
    main()
