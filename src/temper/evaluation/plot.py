"""report.png from the tree of report.json: success by stage and domain with intervals, and reward while training."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_INK, _FAINT = "#22282f", "#d9dde2"
_STAGES = {"base": "#9aa3ad", "sft": "#e69f00", "rl": "#0072b2"}  # after Okabe and Ito, told apart by the colour-blind
_OTHERS = ("#cc79a7", "#009e73", "#d55e00", "#56b4e9", "#8b6bb1", "#a6761d")


def draw(
    report: dict[str, Any],
    curve: Mapping[str, Sequence[tuple[int, float]]],
    heldout: Sequence[tuple[int, float]] = (),
) -> bytes:
    """A PNG. `curve`: by domain, (step, mean reward). `heldout`: (step, success on held-out tasks)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    domains = sorted({name for stage in report["stages"].values() for name in stage["domains"]})
    height = max(3.6, 1.5 + 0.62 * (len(domains) + 1))
    figure = Figure(figsize=(11 if curve else 6.5, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2 if curve else 1, squeeze=False)[0]
    _success(axes[0], report["stages"], domains)
    if curve:
        _reward(axes[1], curve, heldout)
    for ax in axes:
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.spines["bottom"].set_color(_FAINT)
        ax.tick_params(length=0, colors=_INK, labelsize=9)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def _success(ax: Any, stages: dict[str, Any], domains: list[str]) -> None:
    """One row a domain, the overall one on top; in a row one dot and interval a stage, from top to bottom."""
    rows = ["all tasks", *domains]
    spread = 0.2 if len(stages) > 1 else 0.0
    for at, (name, stage) in enumerate(stages.items()):
        colour = _STAGES.get(name, _OTHERS[at % len(_OTHERS)])
        ax.plot([], [], "o", color=colour, label=name)
        found = [stage["overall"], *(stage["domains"].get(d) for d in domains)]
        for row, summary in enumerate(found):
            if not summary or not summary["n"]:
                continue
            y = row + (at - (len(stages) - 1) / 2) * spread
            ax.plot([100 * summary["low"], 100 * summary["high"]], [y, y], color=colour, lw=2.4, solid_capstyle="round")
            ax.plot(100 * summary["success"], y, "o", color=colour, ms=7, mec="white", mew=1)
    ax.set_yticks(range(len(rows)), rows)
    ax.get_yticklabels()[0].set_fontweight("bold")
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.axhline(0.5, color=_FAINT, lw=1)
    ax.set_xlim(-2, 102)
    ax.grid(axis="x", color=_FAINT, lw=0.6)
    ax.set_axisbelow(True)
    ax.set_xlabel("held-out tasks completed, % (95 % intervals)", color=_INK, fontsize=9)
    ax.set_title("Success by stage", loc="left", color=_INK, fontsize=11, fontweight="bold")
    ax.legend(frameon=False, fontsize=9, ncols=len(stages), loc="lower right", bbox_to_anchor=(1.0, 1.0))


def _reward(ax: Any, curve: Mapping[str, Sequence[tuple[int, float]]], heldout: Sequence[tuple[int, float]]) -> None:
    """Each domain's reward, smoothed, over its pale steps; the mean of the domains in ink; held-out success dotted."""
    by_step: dict[int, list[float]] = {}
    for at, (name, points) in enumerate(sorted(curve.items())):
        steps, rewards = np.array(points).reshape(-1, 2).T
        colour = _OTHERS[at % len(_OTHERS)]
        ax.plot(steps, rewards, color=colour, lw=0.8, alpha=0.25)
        ax.plot(steps, _smooth(rewards), color=colour, lw=1.6, label=name)
        for step, reward in points:
            by_step.setdefault(step, []).append(reward)
    steps = np.array(sorted(by_step))
    ax.plot(steps, _smooth(np.array([np.mean(by_step[s]) for s in steps])), color=_INK, lw=2.4, label="mean")
    if heldout:
        ax.plot(*zip(*heldout, strict=True), "o:", color=_INK, lw=1.2, ms=4, label="held-out tasks completed")
    ax.grid(axis="y", color=_FAINT, lw=0.6)
    ax.set_axisbelow(True)
    ax.set_xlabel("training step (lines: running mean)", color=_INK, fontsize=9)
    ax.set_title("Reward while training", loc="left", color=_INK, fontsize=11, fontweight="bold")
    ax.legend(frameon=False, fontsize=9, ncols=2)


def _smooth(values: np.ndarray) -> np.ndarray:
    """A centred running mean over a tenth of the run, shorter at its ends."""
    half = len(values) // 20
    return np.array([values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))])
