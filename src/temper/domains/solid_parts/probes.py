"""Probes of a part's features: points that have to be in material, and points that must not be (`verifiers.geometry`).

`slack` is how far sizes may be off. Axes are "x", "-x", "y" and so on.
"""

from __future__ import annotations

from math import cos, pi, sin
from typing import Any

from temper.verifiers.geometry import Feature


def hole(name: str, at: Any, axis: str, diameter: float, depth: float, *, through: bool, slack: float) -> Feature:
    """A hole that begins at `at` and goes along `axis`: open inside, a wall around it, a floor unless it is through."""
    along, across = _axes(axis)

    def ring(radius: float, deep: float) -> list[tuple[float, float, float]]:
        turns = [pi * n / 4 for n in range(8)]
        return [_sum(at, (along, deep), (across[0], radius * cos(a)), (across[1], radius * sin(a))) for a in turns]

    empty = [point for deep in (slack, depth / 2, depth - slack) for point in ring(diameter / 2 - slack, deep)]
    floor = [] if through else [_sum(at, (along, depth + slack))]
    return Feature(name, [*ring(diameter / 2 + slack, depth / 2), *floor], empty)


def fillet(
    name: str, corner: Any, axis: str, inward: Any, radius: float, length: float, *, inner: bool = False, slack: float
) -> Feature:
    """A rounded edge that begins at `corner` and runs along `axis`, probed at half its length.

    `inward` has a 1 or -1 for each of the two other axes and leads from the edge to the rounding's centre: into the
    material, or, where an inner edge is filled, out of it.
    """
    middle = _sum(corner, (_axes(axis)[0], length / 2), (inward, radius))
    diagonal = [-c / 2**0.5 for c in inward]
    near, far = ([_sum(middle, (diagonal, radius + by))] for by in (-slack, slack))
    return Feature(name, far, near) if inner else Feature(name, near, far)


def _axes(axis: str) -> tuple[list[float], list[list[float]]]:
    """The direction, and the two axes across it."""
    units = {name: [float(k == n) for k in range(3)] for n, name in enumerate("xyz")}
    along = [-c if axis.startswith("-") else c for c in units.pop(axis[-1])]
    return along, list(units.values())


def _sum(start: Any, *steps: tuple[Any, float]) -> tuple[float, float, float]:
    x, y, z = (start[k] + sum(way[k] * length for way, length in steps) for k in range(3))
    return (x, y, z)
