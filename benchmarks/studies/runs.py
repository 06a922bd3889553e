"""What studies share: a recipe is run as a person runs it, once, and its directory is read afterwards.

A study is a list of arms. Before each it says how long the rest will take, after each it writes its page anew with what
is there. A run that is finished is not run again, one that was interrupted goes on: a study can be stopped at any time.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from temper.evaluation.diagnosis import elapsed
from temper.evaluation.outcome import Outcome, success_by_task
from temper.evaluation.statistics import Interval
from temper.store.run import RunDirectory

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "docs" / "results"


class Arm(NamedTuple):
    """A run: `minutes` on two quiet cores. `start` is a setting, and the run whose SFT weights it is given."""

    recipe: str
    name: str
    minutes: float
    settings: tuple[str, ...] = ()
    start: tuple[str, str] | None = None


WARM = Arm(str(HERE / "warm.toml"), "warm", 2.5)


def arguments(text: str | None, seeds: int, threads: int = 2) -> argparse.ArgumentParser:
    """The options of every study."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--root", type=Path, default=Path("runs/studies"), help="where the runs are")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where page, JSON and plot are written")
    parser.add_argument("--threads", type=int, default=threads)
    parser.add_argument("--set", action="append", default=[], help="settings of every run but the warm start")
    return parser


def each(arms: Sequence[Arm], given: argparse.Namespace) -> Iterator[RunDirectory]:
    """The arms' runs in their order, each finished."""
    took = guessed = 0.0
    for at, arm in enumerate(arms):
        path: Path = given.root / arm.name
        if not (path / "report.json").exists():
            left = [a for a in arms[at:] if not (given.root / a.name / "report.json").exists()]
            minutes = sum(a.minutes for a in left) * (took / guessed if guessed else 1)
            print(f"{len(left)} of {len(arms)} runs are left, about {minutes:.0f} min", file=sys.stderr, flush=True)
            began = time.monotonic()
            _finish(arm, path, given)
            took, guessed = took + (time.monotonic() - began) / 60, guessed + arm.minutes
        yield RunDirectory.view(path)


def _finish(arm: Arm, path: Path, given: argparse.Namespace) -> None:
    words = ["--resume", str(path)]
    if not (path / "recipe.json").exists():
        more = [] if arm is WARM else [*given.set]
        if arm.start:
            key, name = arm.start
            more.append(f"{key}={weights(RunDirectory.view(given.root / name), 'sft').resolve()}")
        words = [arm.recipe, *more, *arm.settings, "--name", arm.name, "--root", str(given.root)]
    environment = os.environ | {
        "OMP_NUM_THREADS": str(given.threads),
        "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path[1:]]),
    }
    print("temper run", *words, file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "temper.cli", "run", *words]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


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
    """Wall clock of a part of the run, over all processes that worked at it."""
    return elapsed(run.events)[part]


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


def subplots(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    """A figure that is drawn into memory, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    found = figure.subplots(1, columns, squeeze=False)[0]
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#d9dde2", lw=0.6)
    return figure, found if columns > 1 else found[0]


def png(figure: Any) -> bytes:
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def intervals(rows: Mapping[str, Interval], axis: str, times: float = 1) -> bytes:
    """A plot: the rows from top to bottom, each mean with its interval, beside zero."""
    figure, axes = subplots(7.5, 0.6 + 0.45 * max(3, len(rows)))
    for at, row in enumerate(rows.values()):
        axes.plot([times * row.low, times * row.high], [at, at], color="#56b4e9", lw=3, solid_capstyle="round")
        axes.plot([times * row.mean], [at], "o", color="#0072b2")
    axes.axvline(0, color="#22282f", lw=1, ls=":")
    axes.set(xlabel=axis, ylim=(len(rows) - 0.5, -0.5))
    axes.set_yticks(range(len(rows)), list(rows))
    return png(figure)
