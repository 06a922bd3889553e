"""How rewards become advantages: one short module an algorithm (`core.protocols.Algorithm`), found by its name.

A module has `needs` and `advantages(groups)`; one with a `Config` takes it as second argument, and one that needs
values takes them last, float (T,) for each sample. An entry of the result is a sample's advantage, or an array (T,)
where credit goes by token. `resample = True` says that groups which teach nothing are to be replaced by new ones,
`forked = True` that samples may be leaves of one trace.

What they share is here. A masked sample is NaN and in no mean; a group that teaches nothing (fewer than two graded
samples, or all rewards equal) is 0 everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from temper.core.trace import Group, Sample

TINY = 1e-6  # added to deviations, as in TRL and verl


def rewards(group: Group) -> np.ndarray:
    """Reward of each sample, float64 (n,), NaN where its verdict is masked."""
    return np.array([np.nan if s.verdict.masked else s.verdict.reward for s in group.samples], np.float64)


def centred(group: Group) -> np.ndarray:
    """Reward minus the mean of the group's graded samples, float64 (n,); exactly 0 where nothing is to be learnt."""
    return centre(rewards(group))


def centre(r: np.ndarray) -> np.ndarray:
    """Values (n,) minus the mean of those that are not NaN; 0 where fewer than two are there, or all are equal."""
    graded = r[~np.isnan(r)]
    if len(graded) < 2 or graded.min() == graded.max():
        return np.where(np.isnan(r), np.nan, 0.0)
    return r - graded.mean()


def scaled(a: np.ndarray) -> np.ndarray:
    """Centred values (n,) divided by their unbiased deviation, as in TRL and verl."""
    return a / (np.nanstd(a, ddof=1) + TINY) if np.nanmax(np.abs(a), initial=0.0) > 0 else a


def turns(sample: Sample) -> tuple[list[np.ndarray], np.ndarray, list[int]]:
    """Of each sampled turn of a path: where its trained tokens stand, its reward (float64), its segment.

    A reward of a segment that nobody sampled (a tool's answer) belongs to the turn before it; a verdict without
    rewards by segment gives its score to the last turn. The path's first token is never trained.
    """
    indices, at = [], sample.leaf if sample.leaf >= 0 else len(sample.trace.segments) - 1
    while at >= 0:
        indices.append(at)
        at = sample.trace.segments[at].parent
    places: list[np.ndarray] = []
    earned: list[float] = []
    found: list[int] = []
    start = 0
    for index in reversed(indices):
        segment = sample.trace.segments[index]
        here = start + np.flatnonzero(segment.trainable & (segment.versions >= 0))
        here = here[here > 0]
        start += len(segment)
        if len(here):
            places.append(here)
            earned.append(0.0)
            found.append(index)
        if earned:
            earned[-1] += sample.verdict.rewards.get(index, 0.0)
    if earned and not sample.verdict.rewards:
        earned[-1] = sample.verdict.score
    return places, np.array(earned, np.float64), found


def length(sample: Sample) -> int:
    """Tokens of the sample's path."""
    return sum(len(s) for s in sample.trace.path(sample.leaf))


def masked(sample: Sample) -> np.ndarray:
    """The credit of a sample whose verdict is masked (T,)."""
    return np.full(length(sample), np.nan, np.float32)


def by_token(places: Sequence[np.ndarray], earned: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where all trained tokens stand, and the reward of each: a turn's at its last one."""
    given = [np.append(np.zeros(len(here) - 1), r) for here, r in zip(places, earned, strict=True)]
    return np.concatenate([*places, np.zeros(0, np.int64)]), np.concatenate([*given, np.zeros(0)])


def by_turn(sample: Sample, places: Sequence[np.ndarray], values: Sequence[float] | np.ndarray) -> np.ndarray:
    """A value a turn at each of its tokens, float32 (T,), 0 elsewhere."""
    found = np.zeros(length(sample), np.float32)
    for here, value in zip(places, values, strict=True):
        found[here] = value
    return found


def whiten(entries: Sequence[tuple[np.ndarray, np.ndarray]], mean: bool = True) -> None:
    """Divide the trained tokens of all (values (T,), places) together by their deviation, in place; `mean`: centre too.

    Fewer than two tokens, or all equal, become 0: there is nothing to compare them with.
    """
    together = np.concatenate([values[places] for values, places in entries] or [np.zeros(0)]).astype(np.float64)
    flat = len(together) < 2 or together.min() == together.max()
    middle, scale = (0.0, np.inf) if flat else (together.mean() * mean, together.std(ddof=1) + TINY)
    for values, places in entries:
        values[places] = (values[places] - middle) / scale


def discounted(rewards: np.ndarray, gamma: float) -> np.ndarray:
    """Return-to-go of each step (n,): G_t = r_t + gamma G_{t+1}."""
    found, after = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        found[t] = after = rewards[t] + gamma * after
    return found


def gae(rewards: np.ndarray, values: np.ndarray, gamma: float, lam: float) -> np.ndarray:
    """Generalised advantage estimates (n,), arXiv 1506.02438, of an episode that ends after its last step.

    delta_t = r_t + gamma V_{t+1} - V_t; A_t = delta_t + gamma lam A_{t+1}.
    """
    following = np.append(values[1:], 0.0)[: len(values)]
    return discounted(rewards + gamma * following - values, gamma * lam)
