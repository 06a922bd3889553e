"""Game scenes: the model writes a Godot 4 level (`level.tscn`) that loads, can be played, and is as it was asked for.

A player walks over a grid of cells among walls, keys and locked doors. There are many right levels: the file is read,
and its maze is solved (`verifiers.scene`). `write` stores the file and says what keeps it from loading; a message
without a call, such as "done", ends the episode.

Level 1: walls, and how long the shortest way has to be. Level 2: a door that cannot be passed by, and its key. Level 3:
two doors, and two rooms whose objects have positions relative to them.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, structs

from temper.core.protocols import Environment, Resources
from temper.core.task import Case, Limits, Message, Split, Task, ToolCall
from temper.domains.generated import LEVELS, Draft, stream
from temper.rollouts.environments import ToolEnvironment
from temper.rollouts.toolsets import ToolError, Toolset, tool
from temper.verifiers.audit.bench import Bench
from temper.verifiers.checks import tscn
from temper.verifiers.checks.mazes import Cell, Grid, solve

CELL = 16
PREFABS = ("player", "goal", "wall", "key", "door")
_COLOURS = ("red", "blue", "green", "gold", "pink", "gray")
_BYTES = 32 << 10  # of a level that `write` takes
_PROJECT = {f"{kind}.tscn": "" for kind in PREFABS}


def create(config: object = None) -> GameLevels:
    return GameLevels()


class GameLevels:
    """`core.protocols.Domain`."""

    name = "game_levels"
    levels = LEVELS

    def tasks(self, split: Split, level: int, seed: int = 0) -> Iterator[Task]:
        return stream(self.name, draw, split, level, seed)

    def environment(self, task: Task, resources: Resources) -> Environment:
        return ToolEnvironment(task, Editor(), resources)

    def verifier(self, task: Task) -> tuple[str, Mapping[str, Any]]:
        return "scene", {}

    def gold(self, task: Task) -> tuple[Message, ...]:
        call = ToolCall("write", {"text": task.reference["solution"]})
        return (Message("assistant", calls=(call,)), Message("assistant", "done"))

    def cases(self, task: Task) -> Iterator[Case]:
        for right, forms in ((True, right_forms(task)), (False, mutations(task))):
            for why, text in forms.items():
                yield Case(right=right, why=why, artifacts={"level.tscn": text.encode()})

    async def second_opinion(self, task: Task, case: Case, bench: Bench) -> bool | None:
        """The author's level is right; a text without header, player, goal or a prefab that is needed is wrong."""
        text = case.artifacts.get("level.tscn", b"").decode("utf-8", "replace").strip()
        if text == task.reference["solution"].strip():
            return True
        counts = [rule for rule in task.reference["rules"] if rule["rule"] == "count" and rule["kind"] in PREFABS]
        needed = {"player", "goal", *(rule["kind"] for rule in counts if rule["least"] > 0)}
        header = re.search(r"^\[gd_scene\b.*\bformat=[34]\b", text, re.M)
        return None if header and all(f"res://{kind}.tscn" in text for kind in needed) else False


class Text(Struct):
    text: str = ""


class Editor(Toolset):
    """One file, and what the editor says when it opens it."""

    State = Text
    output_bytes = 300

    @tool
    def write(self, text: str) -> None:
        """Write level.tscn."""
        if len(text) > _BYTES:
            raise ToolError(f"longer than {_BYTES} characters")
        self.state.text = text
        try:
            problems = tscn.problems(tscn.read(text.encode("utf-8", "replace")), frozenset(_PROJECT))
        except tscn.BrokenError as error:
            raise ToolError(str(error)) from None
        if problems:
            raise ToolError("; ".join(problems[:3]))

    def artifacts(self) -> dict[str, bytes]:
        return {"level.tscn": self.state.text.encode("utf-8", "replace")} if self.state.text else {}


class Placed(Struct, frozen=True):
    """An instance of a prefab in a cell."""

    kind: str
    cell: Cell
    colour: str = ""
    room: str = "."


class Level(Struct, frozen=True):
    """A level as it was drawn. `rooms`: their first columns, by name."""

    size: Cell
    placed: tuple[Placed, ...]
    rooms: dict[str, int] = {}
    name: str = ""

    def moves(self) -> int | None:
        bits = {colour: 1 << n for n, colour in enumerate(_COLOURS)}
        by_kind = {kind: [p for p in self.placed if p.kind == kind] for kind in PREFABS}
        keys, doors = ({p.cell: bits[p.colour] for p in by_kind[kind]} for kind in ("key", "door"))
        start, goal = by_kind["player"][0].cell, by_kind["goal"][0].cell
        return solve(Grid(self.size, {p.cell for p in by_kind["wall"]}, start, goal, keys, doors))


def draw(rng: random.Random, level: int) -> Draft:
    """The level's name decides it, so that whoever asks for the same gets the same."""
    name = f"Level{rng.randrange(10**6)}"
    rng = random.Random(f"{name}/{level}")
    drawn, moves = None, None
    while drawn is None or moves is None:
        drawn = _open(rng) if level == 1 else _locked(rng, level - 1)
        moves = drawn.moves() if drawn else None
        if level == 1 and moves and moves < _apart(drawn) + 2:  # the walls have to matter
            moves = None
    drawn = structs.replace(drawn, name=name)
    rules = _rules(drawn, moves, level)
    wish = _wish(drawn, moves, level)

    def build(rng: random.Random) -> Task:
        sizes = {kind: [CELL, CELL] for kind in PREFABS}
        solution = text_of(drawn)
        return Task(
            id="",
            domain=GameLevels.name,
            messages=(Message("user", wish),),
            tools=Editor().specs(),
            limits=Limits(turns=4, tokens=2048 * level, turn_tokens=1024 * level),
            artifacts=("level.tscn",),
            reference={
                "file": "level.tscn", "rules": rules, "project": _PROJECT, "sizes": sizes, "solution": solution,
            },
        )  # fmt: skip

    return Draft(repr(rules[1:]), wish, build)


def _open(rng: random.Random) -> Level | None:
    """Player, goal and a few walls anywhere."""
    size = (rng.randint(3, 6), rng.randint(3, 6))
    cells = [(x, y) for x in range(size[0]) for y in range(size[1])]
    cells = rng.sample(cells, min(2 + rng.randint(3, 7), len(cells) - 2))
    kinds = ["player", "goal"] + ["wall"] * (len(cells) - 2)
    return Level(size, tuple(Placed(kind, cell) for kind, cell in zip(kinds, cells, strict=True)))


def _locked(rng: random.Random, doors: int) -> Level | None:
    """Zones from left to right, divided by a column of walls with a door in it; its key lies in a zone before it."""
    size = (rng.randint(2, 3) * (doors + 1) + doors, rng.randint(2, 4))
    columns = sorted(rng.sample(range(1, size[0] - 1), doors))
    bounds = [-1, *columns, size[0]]
    zones = [
        [(x, y) for x in range(left + 1, right) for y in range(size[1])] for left, right in itertools.pairwise(bounds)
    ]
    if not all(zones) or len(zones[0]) < 2 + doors:
        return None
    rooms = {"West": 0, "East": columns[0] + 1} if doors == 2 else {}
    placed: list[Placed] = []
    for column, colour in zip(columns, rng.sample(_COLOURS, doors), strict=True):
        gap = rng.randrange(size[1])
        placed += [Placed("door" if y == gap else "wall", (column, y), colour * (y == gap)) for y in range(size[1])]
        zone = zones[rng.randrange(columns.index(column) + 1)]
        placed.append(Placed("key", zone.pop(rng.randrange(len(zone))), colour))
        if not zone:
            return None
    placed.append(Placed("player", zones[0].pop(rng.randrange(len(zones[0])))))
    if not zones[-1] or not zones[0]:
        return None
    placed.append(Placed("goal", zones[-1].pop(rng.randrange(len(zones[-1])))))
    free = [cell for zone in zones for cell in zone]
    placed += [Placed("wall", cell) for cell in rng.sample(free, min(rng.randint(0, 2), len(free)))]
    if rooms:
        placed = [Placed(p.kind, p.cell, p.colour, "East" if p.cell[0] >= rooms["East"] else "West") for p in placed]
    return Level(size, tuple(placed), rooms)


def _apart(level: Level) -> int:
    (a, b), (c, d) = (next(p.cell for p in level.placed if p.kind == kind) for kind in ("player", "goal"))
    return abs(a - c) + abs(b - d)


def _rules(level: Level, moves: int, stage: int) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = [
        {"rule": "count", "kind": "Node2D", "where": {"name": level.name, "parent": ""}, "least": 1, "most": 1},
        {"rule": "maze", "cell": CELL, "size": list(level.size), "moves": [moves, moves], "locked": stage > 1},
        {"rule": "apart", "kinds": list(PREFABS)},
    ]
    for kind in ("player", "goal"):
        at = next(p for p in level.placed if p.kind == kind)
        where = {"parent": at.room} if level.rooms else {}
        rules.append({"rule": "place", "kind": kind, "where": where, "at": [CELL * (c + 0.5) for c in at.cell]})
    for room in level.rooms or ("",):
        n = sum(p.kind == "wall" for p in level.placed if not room or p.room == room)
        where = {"parent": room} if room else {}
        rules.append({"rule": "count", "kind": "wall", "where": where, "least": n, "most": n})
    for kind in ("key", "door"):
        found = [p for p in level.placed if p.kind == kind]
        rules.append({"rule": "count", "kind": kind, "least": len(found), "most": len(found)})
        for p in found:
            rules.append({"rule": "count", "kind": kind, "where": {"color": p.colour}, "least": 1, "most": 1})
    for room, column in level.rooms.items():
        right = level.size[0] if column else level.rooms["East"]
        low, high = [CELL * column, 0], [CELL * right, CELL * level.size[1]]
        rules += [
            {"rule": "within", "kind": kind, "where": {"parent": room}, "low": low, "high": high} for kind in PREFABS
        ]
    return rules


def _wish(level: Level, moves: int, stage: int) -> str:
    kinds = PREFABS if stage > 1 else PREFABS[:3]
    files = ", ".join(f"res://{kind}.tscn" for kind in kinds)
    player, goal = (next(p.cell for p in level.placed if p.kind == kind) for kind in ("player", "goal"))
    lines = [
        f"Write level.tscn, a Godot 4 scene (format=3) with instances of {files}. Its root is a Node2D, {level.name}.",
        f"The level has {level.size[0]} x {level.size[1]} cells of {CELL} px; cell (x, y) is centred at "
        f"Vector2({CELL} * x + {CELL // 2}, {CELL} * y + {CELL // 2}). At most one object is in a cell.",
        f"The player is in cell {player}, the goal in cell {goal}.",
    ]
    if level.rooms:
        east = level.rooms["East"]
        lines.append(
            f"Two Node2D rooms are children of the root: West at (0, 0) has columns 0 to {east - 1}, East at "
            f"({CELL * east}, 0) the others. Each object is a child of its room; its position is relative to the room."
        )
        walls = [f"{sum(p.kind == 'wall' and p.room == room for p in level.placed)} in {room}" for room in level.rooms]
        lines.append(f"Walls: {', '.join(walls)}.")
    else:
        lines.append(f"Walls: {sum(p.kind == 'wall' for p in level.placed)}.")
    if colours := [p.colour for p in level.placed if p.kind == "door"]:
        lines.append(
            f"One door and one key each for color = {' and '.join(map(repr, sorted(colours)))}. A key that was walked "
            "over opens the doors of its color; the goal cannot be reached without opening every door."
        )
    lines.append(
        f"The player moves to the four neighbours of a cell; the shortest way to the goal takes {moves} moves."
    )
    return "\n".join(lines)


# -- the file


def text_of(level: Level, *, header: str = "[gd_scene format=3]", form: str = "position") -> str:
    """The scene. `form`: how positions are written."""
    kinds = [kind for kind in PREFABS if any(p.kind == kind for p in level.placed)]
    lines = [header, ""]
    lines += [f'[ext_resource type="PackedScene" path="res://{kind}.tscn" id="{n}"]' for n, kind in enumerate(kinds, 1)]
    lines += ["", f'[node name="{level.name}" type="Node2D"]']
    for room, column in level.rooms.items():
        lines += ["", f'[node name="{room}" type="Node2D" parent="."]', _position(CELL * column, 0, form)]
    for n, p in enumerate(level.placed):
        x, y = (CELL * c + CELL // 2 for c in p.cell)
        id = kinds.index(p.kind) + 1
        lines += [
            "",
            f'[node name="{p.kind.capitalize()}{n}" parent="{p.room}" instance=ExtResource("{id}")]',
            _position(x - CELL * level.rooms.get(p.room, 0), y, form),
        ]
        if p.colour:
            lines.append(f'color = "{p.colour}"')
    return "\n".join(lines) + "\n"


def _position(x: int, y: int, form: str) -> str:
    return f"transform = Transform2D(1, 0, 0, 1, {x}, {y})" if form == "transform" else f"position = Vector2({x}, {y})"


# -- known answers


def read_back(task: Task) -> Level:
    """The level that a task was drawn with, out of its solution."""
    nodes = tscn.nodes(tscn.read(task.reference["solution"].encode()))
    maze = task.reference["rules"][1]
    rooms: dict[str, int] = {}
    placed = []
    for node in nodes[1:]:
        x, y = node.properties["position"].args
        if not node.source:
            rooms[node.name] = x // CELL
            continue
        room = node.path.rpartition("/")[0] or "."
        cell = (x // CELL + rooms.get(room, 0), y // CELL)
        placed.append(Placed(node.source.removesuffix(".tscn"), cell, node.properties.get("color", ""), room))
    return Level((maze["size"][0], maze["size"][1]), tuple(placed), rooms, nodes[0].name)


def right_forms(task: Task) -> dict[str, str]:
    """The same level in other words, and another level that keeps the rules."""
    level, text, rng = read_back(task), task.reference["solution"], random.Random(task.id)
    shuffled = structs.replace(level, placed=tuple(rng.sample(level.placed, len(level.placed))))
    steps = len(level.placed) + 1
    forms = {
        "as generated": text,
        "with an editor's header": text_of(level, header=f'[gd_scene load_steps={steps} format=3 uid="uid://b1x4"]'),
        "with transforms": text_of(level, form="transform"),
        "in another order": text_of(shuffled),
        "with comments and blank lines": "; a level\n\n" + text.replace("[node", "\n; next\n[node"),
        "with numbers as floats": text.replace(", 8)", ", 8.0)").replace("Vector2(8,", "Vector2( 8.000,"),
        "with a camera and a connection": text
        + '\n[node name="Camera" type="Camera2D" parent="."]\nzoom = Vector2(2, 2)\nlimits = [0, {"a": null}]\n'
        '\n[connection signal="tree_entered" from="." to="Camera" method="show"]\n',
    }
    if (other := _another(level, rng)) is not None:
        forms["another level"] = text_of(other)
    return forms


def _another(level: Level, rng: random.Random) -> Level | None:
    """Other places for the walls that do not divide zones, with a shortest way as long."""
    doors = {p.cell[0] for p in level.placed if p.kind == "door"}
    loose = [p for p in level.placed if p.kind == "wall" and p.cell[0] not in doors]
    kept = [p for p in level.placed if p not in loose]
    taken = {p.cell for p in kept}
    free = [
        (x, y) for x in range(level.size[0]) for y in range(level.size[1]) if (x, y) not in taken and x not in doors
    ]
    for _ in range(60 if loose else 0):
        moved = [Placed("wall", cell, "", p.room) for p, cell in zip(loose, rng.sample(free, len(loose)), strict=True)]
        other = structs.replace(level, placed=(*kept, *moved))
        housed = all(p.room == "." or (p.cell[0] >= level.rooms["East"]) == (p.room == "East") for p in moved)
        if housed and {p.cell for p in moved} != {p.cell for p in loose} and other.moves() == level.moves():
            return other
    return None


def mutations(task: Task) -> dict[str, str]:
    """The level with one thing wrong."""
    text = task.reference["solution"]
    broken = {
        "player and goal changed": text.replace("player.t", "?").replace("goal.t", "player.t").replace("?", "goal.t"),
        "off the centre by 3 px": text.replace("Vector2(8, ", "Vector2(11, ", 1),
        "another root": text.replace(task.reference["rules"][0]["where"]["name"], "Main"),
        "format 2": text.replace("format=3", "format=2"),
        "a resource that is not defined": text.replace('ExtResource("1")', 'ExtResource("9")'),
        "a file that is not there": text.replace("wall.tscn", "walls.tscn"),
        "a parent that is not there": re.sub(r'(name="Goal\d+" parent=)"[^"]*"', r'\1"Walls"', text),
        "a bracket missing": text.replace(")]\n", ")\n", 1),
        "a value missing": text.replace("position = ", "position ", 1),
        "cut short": text[: len(text) * 2 // 3].rpartition("(")[0],
        "the root has a parent": text.replace('type="Node2D"]', 'type="Node2D" parent="."]', 1),
        "scaled": text.replace('type="Node2D"]', 'type="Node2D"]\nscale = Vector2(2, 2)', 1),
        "positions of another cell size": text.replace("position = Vector2(", "position = 2 * Vector2("),
    }
    rng, level = random.Random(task.id), read_back(task)
    broken |= {why: text_of(mutant) for why, mutant in _placements(level, rng)}
    if twins := [p for p in level.placed if p.room == level.placed[0].room][:2]:
        first, second = (f"{p.kind.capitalize()}{level.placed.index(p)}" for p in twins)
        broken["a name twice"] = text.replace(f'name="{first}"', f'name="{second}"')
    return {why: mutant for why, mutant in broken.items() if mutant != text}


def _placements(level: Level, rng: random.Random) -> Iterator[tuple[str, Level]]:
    """Levels that load, with one object too few, too many or in a wrong place."""
    one = {kind: next((p for p in level.placed if p.kind == kind), None) for kind in PREFABS}
    player, goal, wall = one["player"], one["goal"], one["wall"]
    assert player is not None
    assert goal is not None
    assert wall is not None
    used = {p.cell for p in level.placed}
    free = [(x, y) for x in range(level.size[0]) for y in range(level.size[1]) if (x, y) not in used]
    yield "no goal", _with(level, goal)
    yield "a wall less", _with(level, wall)
    yield "two objects in a cell", _with(level, wall, cell=player.cell)
    yield "an object outside", _with(level, wall, cell=(level.size[0], 0))
    moves = {cell: _with(level, wall, cell=cell).moves() for cell in free}
    if longer := [cell for cell in free if moves[cell] not in (level.moves(), None)]:
        yield "a wall elsewhere, another shortest way", _with(level, wall, cell=rng.choice(longer))
    if blocked := [cell for cell in free if moves[cell] is None]:
        yield "a wall in the only way", _with(level, wall, cell=rng.choice(blocked))
    for key in (p for p in level.placed if p.kind == "key"):
        door = next(p for p in level.placed if p.kind == "door" and p.colour == key.colour)
        if behind := [cell for cell in free if cell[0] > door.cell[0]]:
            yield f"the {key.colour} key behind its door", _with(level, key, cell=rng.choice(behind))
        other = next(colour for colour in _COLOURS if all(p.colour != colour for p in level.placed))
        yield f"the {key.colour} key of another colour", _with(level, key, colour=other)
        beside = next(p for p in level.placed if p.kind == "wall" and p.cell[0] == door.cell[0])
        gaps = [_with(level, beside, cell=cell) for cell in free]
        if passed := [gap for gap in gaps if _with(gap, door, kind="wall", colour="").moves() is not None]:
            yield f"a gap beside the {door.colour} door", rng.choice(passed)


def _with(level: Level, old: Placed, **change: Any) -> Level:
    """The level with one object changed, or without it."""
    new = structs.replace(old, **change) if change else None
    placed = (new if p is old else p for p in level.placed)
    return structs.replace(level, placed=tuple(p for p in placed if p is not None))
