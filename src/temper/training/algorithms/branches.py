"""Credit at branch points: what a turn was worth is read off its siblings, the conversations forked where it began.

The value of a leaf is its reward; that of a state is the mean over what was sampled from it (the group's start: over
its traces). A segment's advantage is the value of the next branch point or leaf after it, minus the value of the branch
point where its branch began. Along a path they add up to reward minus the group's mean (one term a branch), and in a
group without forks they are Dr. GRPO's. Monte-Carlo values from forks as in VinePPO (arXiv 2410.01679), on the trees of
TreeRL (arXiv 2506.11902). A segment that several samples share was sampled once and counts once: each sample gets
its part. Samples of one trace share the segments of their common path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from temper.core.trace import Group
from temper.training.algorithms import by_turn, masked, rewards, turns

needs: frozenset[str] = frozenset()
forked = True

_Node = tuple[str, int]  # a trace and one of its sampled segments; ("", -1) is the group's start


def advantages(groups: Sequence[Group]) -> list[list[np.ndarray]]:
    return [_credited(group) for group in groups]


def _credited(group: Group) -> list[np.ndarray]:
    start: _Node = ("", -1)
    paths: list[list[_Node]] = []
    children: defaultdict[_Node, dict[_Node, None]] = defaultdict(dict)
    ends: defaultdict[_Node, list[float]] = defaultdict(list)  # rewards of the samples that end here
    passing: defaultdict[_Node, int] = defaultdict(int)
    for sample, reward in zip(group.samples, rewards(group), strict=True):
        nodes = [start, *((sample.trace.id, segment) for segment in turns(sample)[2])]
        paths.append(nodes)
        if sample.verdict.masked:
            continue
        for above, node in pairwise(nodes):
            children[above][node] = None
        ends[nodes[-1]].append(float(reward))
        for node in nodes:
            passing[node] += 1

    value: dict[_Node, float] = {}
    for node in reversed(passing):  # a node comes after what is above it
        value[node] = float(np.mean([*(value[child] for child in children[node]), *ends[node]]))
    found = []
    for sample, nodes in zip(group.samples, paths, strict=True):
        if sample.verdict.masked:
            found.append(masked(sample))
            continue
        credit, before = [], value[start]
        for node in nodes[1:]:
            credit.append((value[node] - before) / passing[node])
            if len(children[node]) + len(ends[node]) > 1:
                before = value[node]
        found.append(by_turn(sample, turns(sample)[0], credit))
    return found
