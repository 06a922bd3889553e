"""Mazes on a grid, walked in four directions: keys that lie about open doors of their colour. Solved by search."""

from __future__ import annotations

from typing import NamedTuple

_STEPS = ((1, 0), (-1, 0), (0, 1), (0, -1))

Cell = tuple[int, int]


class Grid(NamedTuple):
    """A maze by cells. Colours are bits."""

    size: Cell
    walls: set[Cell]
    start: Cell
    goal: Cell
    keys: dict[Cell, int]
    doors: dict[Cell, int]


def solve(grid: Grid) -> int | None:
    """The least number of moves from start to goal, None when there is no way. A key opens all doors of its colour."""
    if grid.start in grid.walls or grid.start in grid.doors:
        return None
    first = (grid.start, grid.keys.get(grid.start, 0))
    seen, front, steps = {first}, [first], 0
    while front:
        after = []
        for (x, y), held in front:
            if (x, y) == grid.goal:
                return steps
            for dx, dy in _STEPS:
                cell = (x + dx, y + dy)
                if not (0 <= cell[0] < grid.size[0] and 0 <= cell[1] < grid.size[1]) or cell in grid.walls:
                    continue
                if grid.doors.get(cell, 0) & ~held:
                    continue
                state = (cell, held | grid.keys.get(cell, 0))
                if state not in seen:
                    seen.add(state)
                    after.append(state)
        front, steps = after, steps + 1
    return None
