"""A scene file loads, its references resolve, and what it holds keeps the task's rules (`checks.scenes`).

Reference: {"file": "level.tscn" or "scene.gltf" or "scene.glb", "rules": [...], "solution": a file that keeps them (for
.glb as .gltf), "project": {...}, "sizes": {...}}. The policy delivers `file`. `project` are the files that references
may lead to (path to content, "" where only the name matters), `sizes` the boxes of Godot prefabs by kind, which is the
stem of the instance's file.

Rules, told apart by "rule": count, place, within, distance, on, has, apart, maze. Score 1 only if the file is valid and
every rule holds. Components: loads, rules (the share that holds).
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.task import Task
from temper.verifiers import written
from temper.verifiers.grading import Given, Judgement, Plugin, Some, Text

Config = written.Config
_MOST_CELLS = 2500


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="rule", tag=str.lower):
    """About all objects of a kind whose properties (and "name", "parent") are as `where` says."""

    kind: str = ""
    where: dict[str, Any] = {}


class Count(Rule, frozen=True, kw_only=True):
    least: int
    most: int


class Place(Rule, frozen=True, kw_only=True):
    """There is exactly one, and it is here, in world coordinates."""

    at: list[float]
    tolerance: float = 1e-3


class Within(Rule, frozen=True, kw_only=True):
    """Their boxes are inside this one."""

    low: list[float]
    high: list[float]


class Distance(Rule, frozen=True, kw_only=True):
    """Of each to the nearest object of the kind `to`."""

    to: str
    least: float = 0.0
    most: float = math.inf


class On(Rule, frozen=True, kw_only=True):
    """Each stands on an object of the kind `to`."""

    to: str


class Has(Rule, frozen=True, kw_only=True):
    """There are some, and each has this property, such as "material.pbrMetallicRoughness.metallicFactor"."""

    property: str
    value: Any


class Apart(Rule, frozen=True, kw_only=True):
    """No two objects of these kinds overlap."""

    kinds: list[str]


class Maze(Rule, frozen=True, kw_only=True):
    """A grid that can be walked in four directions; keys open doors of their colour. `locked`: all doors are needed."""

    cell: float
    size: tuple[int, int]
    moves: tuple[int, int]  # least and most of the shortest way
    wall: str = "wall"
    start: str = "player"
    goal: str = "goal"
    key: str = "key"
    door: str = "door"
    colour: str = "color"
    locked: bool = False


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    file: str
    rules: Some[Count | Place | Within | Distance | On | Has | Apart | Maze]
    solution: Text
    project: dict[str, str] = {}
    sizes: dict[str, list[float]] = {}


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    file, artifacts = reference.file, given.artifacts
    project = {path: text.encode() for path, text in reference.project.items()}
    project |= {path: content for path, content in artifacts.items() if path != file}
    rest = (project, reference.sizes, msgspec.to_builtins(reference.rules))
    right, why, components = await given.pool.judge(
        "temper.verifiers.checks.scenes:check",
        (file, given.file(file), *rest),
        (file.replace(".glb", ".gltf"), reference.solution.encode(), *rest),
        lambda found: found[0],
        settings.seconds,
    )
    return Judgement(float(right), why, components)


def _problem(reference: Reference, task: Task) -> str:
    large = any(isinstance(rule, Maze) and math.prod(rule.size) > _MOST_CELLS for rule in reference.rules)
    return f"a maze has at most {_MOST_CELLS} cells" if large else ""


create = Plugin(__name__, Config, Reference, judge, _problem)
