"""What studies share: a recipe is run as a person runs it, once, and its directory is read afterwards.

A run that is finished is not run again, one that was interrupted goes on: a study can be stopped at any time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from temper.evaluation.outcome import Outcome, success_by_task
from temper.store.run import RunDirectory

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "docs" / "results"


def finished(recipe: str, name: str, root: Path, settings: Sequence[str] = (), threads: int = 1) -> RunDirectory:
    """The directory of the run `name` of `recipe` with these settings, finished."""
    path = root / name
    if not (path / "report.json").exists():
        again = ["--resume", str(path)] if (path / "recipe.json").exists() else []
        words = again or [recipe, *settings, "--name", name, "--root", str(root)]
        more = {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path[1:]])}
        print("temper run", *words, file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "temper.cli", "run", *words]
        subprocess.run(command, env=os.environ | more, check=True, stdout=subprocess.DEVNULL)
    return RunDirectory.view(path)


def weights(run: RunDirectory, stage: str) -> Path:
    """The folder of a stage's last checkpoint: with all weights trained, it is a model as `model.base` takes it."""
    folder = run.latest(stage).folder
    assert folder is not None, f"{run.path} has no checkpoint of {stage}"
    return folder / "trainer"


def series(run: RunDirectory, key: str, stage: str = "rl") -> np.ndarray:
    """A metric by step, (steps,); nan where a step has none."""
    found = {m.step: m.values.get(key, np.nan) for m in run.metrics if m.stage == stage}
    return np.array([found[step] for step in sorted(found)])


def seconds(run: RunDirectory, part: str) -> float:
    """Wall clock of a part of the run that one process did."""
    when = {e.why: e.when for e in run.events if e.what == "part" and e.whom == part}
    return when["finished"] - when["started"]


def outcomes(run: RunDirectory, stage: str) -> list[Outcome]:
    return [o for o in run.log("outcomes", Outcome) if o.stage == stage]


def success(runs: Sequence[RunDirectory], stage: str) -> dict[str, float]:
    """By held-out task, the share of these runs (seeds) that solved it at the end of `stage`."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for task, share in success_by_task(outcomes(run, stage)).items():
            found.setdefault(task, []).append(share)
    return {task: float(np.mean(shares)) for task, shares in found.items()}


def reward(run: RunDirectory, stage: str) -> float:
    """Mean reward on the held-out tasks, as training sees it."""
    return float(np.mean([o.verdict.reward for o in outcomes(run, stage)]))


def publish(name: str, tree: dict[str, Any], page: str, image: bytes, folder: Path) -> None:
    """NAME.json, NAME.md and NAME.png in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = json.loads(msgspec.json.encode(tree))
    (folder / f"{name}.json").write_text(json.dumps(plain, indent=2) + "\n", "utf-8")
    (folder / f"{name}.md").write_text(page, "utf-8")
    (folder / f"{name}.png").write_bytes(image)


def paragraph(text: str) -> str:
    """One paragraph, its lines filled."""
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])
