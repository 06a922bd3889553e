"""What a scene file holds, as objects in world coordinates, and whether rules about them hold.

Godot's `.tscn` and glTF give the same `Object`s. Rules are those of `verifiers.scene`, as plain data. Nothing of the
scene is run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from temper.verifiers.checks import gltf, tscn
from temper.verifiers.checks.gltf_asset import Asset
from temper.verifiers.checks.mazes import Cell, Grid, solve

_MOST_OBJECTS, _MOST_COLOURS = 3000, 6
_CLOSE = 1e-3
_PARTS = {"material", "light", "camera"}  # whose properties are theirs to say, and not the node's extras'


class Object(NamedTuple):
    """`kind`: the stem of an instance's file, else the node's type ("node" in glTF). `low`, `high`: its box."""

    name: str
    kind: str
    at: np.ndarray  # (3,), z is 0 in 2D
    low: np.ndarray
    high: np.ndarray
    properties: dict[str, Any]


def check(name: str, content: bytes, project: dict[str, bytes], sizes: dict[str, list[float]], rules: list[Any]) -> Any:
    """(right, why not, components). `project`: files beside it. `sizes`: of kinds whose boxes the file does not say."""
    found, why = objects(name, content, project, sizes)
    if why:
        return False, "; ".join(why[:3]), {"loads": 0.0}
    up = not name.endswith(".tscn") or any(o.kind.endswith("3D") for o in found)  # which way y points
    whys = [list(_RULES[rule["rule"]](found, rule, up)) for rule in rules]
    kept = [not failed for failed in whys]
    first = [failed[0] for failed in whys if failed]
    return all(kept), "; ".join(first[:3]), {"loads": 1.0, "rules": sum(kept) / max(len(kept), 1)}


def objects(
    name: str, content: bytes, project: dict[str, bytes], sizes: dict[str, list[float]]
) -> tuple[list[Object], list[str]]:
    """The objects, or why the file does not load."""
    if name.endswith(".tscn"):
        try:
            sections = tscn.read(content)
        except tscn.BrokenError as error:
            return [], [str(error)]
        problems = tscn.problems(sections, frozenset(project))
        found = [] if problems else list(_from_tscn(tscn.nodes(sections), sizes, project))
    else:
        problems = gltf.problems(name, content, project)
        found = [] if problems else list(_from_gltf(Asset(name, content, project)))
    if len(found) > _MOST_OBJECTS:
        problems = [f"more than {_MOST_OBJECTS} objects"]
    if not all(np.isfinite([o.at, o.low, o.high]).all() for o in found):
        problems = ["a position or a size is not finite"]
    return found, problems


def _from_tscn(nodes: list[tscn.Node], sizes: dict[str, list[float]], files: Iterable[str]) -> Iterator[Object]:
    """A node is no instance of a scene that its type is called like."""
    prefabs = {_stem(path) for path in files if path.endswith(".tscn")}
    world: dict[str, np.ndarray] = {}
    for node in nodes:
        parent = "" if node.path == "." else node.path.rpartition("/")[0] or "."
        local = _transform(node.properties)
        matrix = world[node.path] = world.get(parent, np.eye(4)) @ local
        kind = _stem(node.source) or (node.type if node.type not in prefabs else "")
        size = [*sizes.get(kind, ()), 0.0, 0.0, 0.0][:3]
        corners = np.array(np.meshgrid(*([-s / 2, s / 2] for s in size))).reshape(3, 8)
        corners = (matrix[:3, :3] @ corners).T + matrix[:3, 3]
        properties = {**node.properties, "name": node.name, "parent": parent.rpartition("/")[2]}
        yield Object(node.name, kind, matrix[:3, 3], corners.min(0), corners.max(0), properties)


def _stem(path: str) -> str:
    return path.rpartition("/")[2].partition(".")[0]


def _transform(properties: dict[str, Any]) -> np.ndarray:
    """A node's own transform, 2D or 3D."""
    whole = np.eye(4)
    given = properties.get("transform")
    if isinstance(given, tscn.Call) and given.name in ("Transform3D", "Transform2D"):
        numbers = _numbers(given, 12 if given.name == "Transform3D" else 6)
        if given.name == "Transform3D":
            whole[:3, :3], whole[:3, 3] = numbers[:9].reshape(3, 3), numbers[9:]
        else:
            whole[:2, :2], whole[:2, 3] = numbers[:4].reshape(2, 2).T, numbers[4:]
        return whole
    scale, turn = np.ones(3), properties.get("rotation", 0.0)
    for key, target in (("position", whole[:3, 3]), ("scale", scale)):
        if isinstance(given := properties.get(key), tscn.Call):
            target[:] = np.where(np.arange(3) < len(given.args), _numbers(given, 3), target)
    angles = _numbers(turn, 3) if isinstance(turn, tscn.Call) else np.array([0.0, 0.0, _number(turn)])
    whole[:3, :3] = _euler(angles) * scale
    return whole


def _euler(angles: np.ndarray) -> np.ndarray:
    """Godot's order: about y, then x, then z."""
    (x, y, z), (i, j, k) = np.cos(angles), np.sin(angles)
    about_x = np.array([[1, 0, 0], [0, x, -i], [0, i, x]])
    about_y = np.array([[y, 0, j], [0, 1, 0], [-j, 0, y]])
    about_z = np.array([[z, -k, 0], [k, z, 0], [0, 0, 1]])
    return about_y @ about_x @ about_z


def _numbers(call: tscn.Call, n: int) -> np.ndarray:
    return np.array([_number(value) for value in [*call.args, *[0.0] * n][:n]])


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e12 else math.nan


def _from_gltf(asset: Asset) -> Iterator[Object]:
    nodes, parents = asset.all("nodes"), asset.parents()
    lights = asset.document.get("extensions", {}).get("KHR_lights_punctual", {}).get("lights", [])
    order = [n for n in range(len(nodes)) if n not in parents]
    world: dict[int, np.ndarray] = {}
    for n in order:
        node = nodes[n]
        matrix = world[n] = world.get(parents.get(n, -1), np.eye(4)) @ _local(node)
        order += node.get("children", [])
        extras = node["extras"] if isinstance(node.get("extras"), dict) else {}
        own = {key: value for key, value in extras.items() if key.partition(".")[0] not in _PARTS}
        corners, properties = [matrix[:3, 3]], {**own, "name": node.get("name", "")}
        for primitive in asset.all("meshes")[node["mesh"]]["primitives"] if "mesh" in node else ():
            if "POSITION" in primitive["attributes"]:
                accessor = asset.all("accessors")[primitive["attributes"]["POSITION"]]
                box = np.array(np.meshgrid(*zip(accessor["min"], accessor["max"], strict=True))).reshape(3, 8)
                corners += list((matrix[:3, :3] @ box).T + matrix[:3, 3])
            if "material" in primitive:
                properties |= _flat("material", asset.all("materials")[primitive["material"]])
        if (light := node.get("extensions", {}).get("KHR_lights_punctual")) is not None:
            properties |= _flat("light", lights[light["light"]])
        if "camera" in node:
            properties |= _flat("camera", asset.all("cameras")[node["camera"]])
        kind = str(properties.get("kind", "node"))
        yield Object(node.get("name", ""), kind, matrix[:3, 3], np.min(corners, 0), np.max(corners, 0), properties)


def _local(node: dict[str, Any]) -> np.ndarray:
    if "matrix" in node:
        return np.array(node["matrix"], float).reshape(4, 4).T
    x, y, z, w = node.get("rotation", (0, 0, 0, 1))
    whole = np.eye(4)
    whole[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    whole[:3, :3] *= node.get("scale", [1, 1, 1])
    whole[:3, 3] = node.get("translation", [0, 0, 0])
    return whole


def _flat(prefix: str, given: dict[str, Any]) -> dict[str, Any]:
    """{"material.pbrMetallicRoughness.metallicFactor": 1}: the plain values of a nested object, three levels deep."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        nested = isinstance(value, dict) and prefix.count(".") < 2
        found |= _flat(f"{prefix}.{key}", value) if nested else {f"{prefix}.{key}": value}
    return found


def _pick(found: list[Object], rule: dict[str, Any], key: str = "kind") -> list[Object]:
    where = rule.get("where", {}) if key == "kind" else {}
    return [o for o in found if o.kind == rule[key] and all(_same(o.properties.get(k), v) for k, v in where.items())]


def _what(rule: dict[str, Any]) -> str:
    return " ".join([*(f"{key} {value}" for key, value in rule.get("where", {}).items()), rule["kind"]])


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(found, tscn.Call):
        found = found.args
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_same, found, wanted))
    if isinstance(found, bool) or isinstance(wanted, bool) or not isinstance(wanted, int | float):
        return type(found) is type(wanted) and found == wanted
    return math.isclose(_number(found), wanted, rel_tol=1e-4, abs_tol=_CLOSE)


def _count(found: list[Object], rule: dict[str, Any], _: bool) -> Iterator[str]:
    n = len(_pick(found, rule))
    if not rule["least"] <= n <= rule["most"]:
        wanted = f"{rule['least']}" if rule["least"] == rule["most"] else f"{rule['least']} to {rule['most']}"
        yield f"{n} of {_what(rule)}, expected {wanted}"


def _place(found: list[Object], rule: dict[str, Any], _: bool) -> Iterator[str]:
    picked = _pick(found, rule)
    wanted = np.array([*rule["at"], 0.0, 0.0][:3])
    if len(picked) != 1 or abs(picked[0].at - wanted).max() > rule.get("tolerance", _CLOSE):
        yield f"expected one {_what(rule)} at {rule['at']}"


def _within(found: list[Object], rule: dict[str, Any], _: bool) -> Iterator[str]:
    n = len(rule["low"])
    for o in _pick(found, rule):
        if (o.low[:n] < np.array(rule["low"]) - _CLOSE).any() or (o.high[:n] > np.array(rule["high"]) + _CLOSE).any():
            yield f"{o.name or o.kind} is not within {rule['low']} and {rule['high']}"


def _distance(found: list[Object], rule: dict[str, Any], _: bool) -> Iterator[str]:
    others = _pick(found, rule, "to")
    for o in _pick(found, rule):
        near = min((float(np.linalg.norm(o.at - other.at)) for other in others if other is not o), default=math.inf)
        if not rule["least"] - _CLOSE <= near <= rule["most"] + _CLOSE:
            yield f"{o.name or o.kind} is {near:.4g} from the nearest {rule['to']}"


def _on(found: list[Object], rule: dict[str, Any], up: bool) -> Iterator[str]:
    """`up`: y points up, as in glTF and in Godot's 3D, and not down, as in its 2D."""
    flat = [0, 2] if up else [0]
    for o in _pick(found, rule):
        below = [
            other
            for other in _pick(found, rule, "to")
            if abs(o.low[1] - other.high[1] if up else o.high[1] - other.low[1]) < 0.01
            and (other.low[flat] <= o.at[flat]).all()
            and (o.at[flat] <= other.high[flat]).all()
        ]
        if not below:
            yield f"{o.name or o.kind} stands on no {rule['to']}"


def _has(found: list[Object], rule: dict[str, Any], _: bool) -> Iterator[str]:
    picked = _pick(found, rule)
    if not picked:
        yield f"no {_what(rule)}"
    for o in picked:
        if not _same(o.properties.get(rule["property"]), rule["value"]):
            yield f"{rule['property']} of {o.name or o.kind} is not {rule['value']}"


def _apart(found: list[Object], rule: dict[str, Any], _: bool) -> Iterator[str]:
    picked = [o for o in found if o.kind in rule["kinds"]]
    if not picked:
        return
    low, high = np.array([o.low for o in picked]), np.array([o.high for o in picked])
    sized = (high - low).max(0) > 0  # axes along which anything has a size
    for n, o in enumerate(picked if sized.any() else ()):
        hit = ((low[n] + _CLOSE < high) & (low + _CLOSE < high[n]))[:, sized].all(1)
        hit[: n + 1] = False
        if hit.any():
            yield f"{o.name or o.kind} overlaps {picked[int(hit.argmax())].name or picked[int(hit.argmax())].kind}"


def _maze(found: list[Object], rule: dict[str, Any], _: bool) -> Iterator[str]:
    size = (rule["size"][0], rule["size"][1])
    kinds = [rule[part] for part in ("wall", "start", "goal", "key", "door")]
    cells: dict[str, list[tuple[Cell, Any]]] = {kind: [] for kind in kinds}
    for o in found:
        if o.kind in cells:
            place = o.at[:2] / rule["cell"] - 0.5
            cell = (round(float(place[0])), round(float(place[1])))
            if abs(place - cell).max() > 0.01 or not all(0 <= c < s for c, s in zip(cell, size, strict=True)):
                yield f"{o.name} is not at the centre of one of the {size[0]} x {size[1]} cells"
                return
            cells[o.kind].append((cell, o.properties.get(rule["colour"])))
    wall, start, goal, key, door = (cells[kind] for kind in kinds)
    colours = sorted({str(colour) for _, colour in (*key, *door)})
    if len(start) != 1 or len(goal) != 1 or len(colours) > _MOST_COLOURS:
        yield f"expected one {rule['start']}, one {rule['goal']} and at most {_MOST_COLOURS} colours"
        return
    bits = {colour: 1 << n for n, colour in enumerate(colours)}
    lying: dict[Cell, int] = {}
    for cell, colour in key:
        lying[cell] = lying.get(cell, 0) | bits[str(colour)]
    doors = {cell: bits[str(colour)] for cell, colour in door}
    grid = Grid(size, {cell for cell, _ in wall}, start[0][0], goal[0][0], lying, doors)
    steps = solve(grid)
    if steps is None:
        yield f"the {rule['goal']} cannot be reached"
        return
    if not rule["moves"][0] <= steps <= rule["moves"][1]:
        yield f"the shortest way takes {steps} moves, expected {rule['moves'][0]} to {rule['moves'][1]}"
    for colour in sorted({str(colour) for _, colour in door} if rule["locked"] else ()):
        shut = {cell for cell, bit in doors.items() if bit == bits[colour]}
        if solve(grid._replace(walls=grid.walls | shut)) is not None:
            yield f"the {rule['goal']} can be reached without opening a {colour} {rule['door']}"


# What is wrong, by rule.
_RULES: dict[str, Callable[[list[Object], dict[str, Any], bool], Iterator[str]]] = {
    "count": _count, "place": _place, "within": _within, "distance": _distance, "on": _on, "has": _has,
    "apart": _apart, "maze": _maze,
}  # fmt: skip
