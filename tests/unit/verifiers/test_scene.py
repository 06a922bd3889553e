"""Rules about scenes, in Godot's and in glTF's form. The maze solver is compared with networkx on random mazes."""

from __future__ import annotations

import json
import math
import random

import pytest

from temper.verifiers import scene
from temper.verifiers.checks.mazes import Grid, solve
from temper.verifiers.checks.scenes import objects

SIZES = {"crate": [10.0, 10.0], "floor": [100.0, 10.0]}
GODOT = """[gd_scene format=3]
[ext_resource type="PackedScene" path="res://crate.tscn" id="1"]
[ext_resource type="PackedScene" path="res://floor.tscn" id="2"]
[node name="Root" type="Node2D"]
[node name="Room" type="Node2D" parent="."]
position = Vector2(100, 0)
rotation = 1.5707963267948966
[node name="A" parent="Room" instance=ExtResource("1")]
position = Vector2(20, 0)
weight = 3
[node name="B" parent="." instance=ExtResource("1")]
position = Vector2(50, 20)
color = Color(1, 0, 0, 1)
[node name="Floor" parent="." instance=ExtResource("2")]
position = Vector2(50, 30)
"""
GLTF = {
    "asset": {"version": "2.0"},
    "extensionsUsed": ["KHR_lights_punctual"],
    "extensions": {"KHR_lights_punctual": {"lights": [{"type": "spot", "spot": {}, "color": [1, 1, 0]}]}},
    "nodes": [
        {"name": "Table", "mesh": 0, "translation": [0, 1, 0], "extras": {"kind": "table"}},
        {"name": "Cup", "mesh": 0, "translation": [0.5, 2.5, 0], "scale": [0.5, 0.5, 0.5], "extras": {"kind": "cup"}},
        {"name": "Lamp", "extensions": {"KHR_lights_punctual": {"light": 0}}, "extras": {"kind": "lamp"}},
    ],
    "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "material": 0}]}],
    "materials": [{"name": "wood", "pbrMetallicRoughness": {"metallicFactor": 0.25}}],
    "accessors": [{"componentType": 5126, "count": 3, "type": "VEC3", "min": [-1, -1, -1], "max": [1, 1, 1]}],
}  # fmt: skip


@pytest.fixture
def grade(judged, pool):
    def run(text: str, *rules: dict, file: str = "a.tscn", gold: str = "", **more):
        reference = {"file": file, "rules": list(rules), "solution": gold or text, "sizes": SIZES, **more}
        reference.setdefault("project", {"crate.tscn": "", "floor.tscn": ""})
        return judged(scene.create(None, pool), reference, "", {file: text.encode()})

    return run


HOLD = [
    {"rule": "count", "kind": "crate", "least": 2, "most": 2},
    {"rule": "count", "kind": "crate", "where": {"parent": "Room"}, "least": 1, "most": 1},
    {"rule": "count", "kind": "crate", "where": {"color": [1, 0, 0, 1]}, "least": 1, "most": 1},
    {"rule": "place", "kind": "crate", "where": {"name": "A"}, "at": [100, 20]},  # turned with its room
    {"rule": "within", "kind": "crate", "low": [45, 15], "high": [105, 25]},
    {"rule": "distance", "kind": "crate", "to": "floor", "least": 10, "most": 55},
    {"rule": "on", "kind": "crate", "where": {"name": "B"}, "to": "floor"},
    {"rule": "has", "kind": "crate", "where": {"name": "A"}, "property": "weight", "value": 3.0},
    {"rule": "apart", "kinds": ["crate", "floor"]},
]
FAIL = [
    {"rule": "count", "kind": "crate", "least": 3, "most": 9},
    {"rule": "count", "kind": "Crate", "least": 1, "most": 9},
    {"rule": "place", "kind": "crate", "where": {"name": "A"}, "at": [120, 0]},
    {"rule": "place", "kind": "crate", "at": [50, 20]},  # there are two
    {"rule": "within", "kind": "crate", "low": [46, 15], "high": [105, 25]},
    {"rule": "distance", "kind": "crate", "to": "floor", "least": 0, "most": 50},
    {"rule": "distance", "kind": "crate", "to": "wall", "least": 0, "most": 1e9},
    {"rule": "on", "kind": "crate", "to": "crate"},
    {"rule": "has", "kind": "crate", "property": "weight", "value": 3},
    {"rule": "has", "kind": "ghost", "property": "weight", "value": 3},
]


def test_rules_that_hold(grade):
    assert grade(GODOT, *HOLD).score == 1.0


@pytest.mark.parametrize("rule", FAIL, ids=str)
def test_rules_that_do_not(grade, rule):
    verdict = grade(GODOT, HOLD[0], rule)
    assert (verdict.status, verdict.score, verdict.components["rules"]) == ("graded", 0.0, 0.5)


def test_in_three_dimensions_y_points_up(grade):
    text = GODOT.replace("2D", "3D").replace("Vector2(50, 20)", "Vector3(50, 40, 0)")
    text = text.replace("Vector2(50, 30)", "Vector3(50, 30, 0)")
    rule = {"rule": "on", "kind": "crate", "where": {"name": "B"}, "to": "floor"}
    assert grade(text, rule).score == 1.0
    assert grade(text.replace("(50, 40, 0)", "(50, 20, 0)"), rule, gold=text).score == 0.0


def test_overlap_is_seen_and_touching_is_none(grade):
    apart = {"rule": "apart", "kinds": ["crate", "floor"]}
    assert grade(GODOT.replace("Vector2(50, 20)", "Vector2(50, 21)"), apart).score == 0.0
    assert grade(GODOT.replace("Vector2(50, 20)", "Vector2(50, 20.0)"), apart).score == 1.0


def test_things_without_a_size_do_not_overlap(grade):
    text = GODOT.replace('instance=ExtResource("1")', 'type="Marker2D"')
    assert grade(text, {"rule": "apart", "kinds": ["Marker2D"]}).score == 1.0


def test_neither_a_type_nor_a_property_makes_a_thing_what_it_is_not(grade):
    faked = GODOT.replace('instance=ExtResource("1")', 'type="crate"')
    assert grade(faked, HOLD[0], gold=GODOT).score == 0.0
    moved = GODOT.replace('parent="Room"', 'parent="."').replace("weight = 3", 'weight = 3\nparent = "Room"')
    assert 'parent = "Room"' in moved
    assert grade(moved, HOLD[1], gold=GODOT).score == 0.0
    text, rule = json.dumps(GLTF), {"rule": "has", "kind": "lamp", "property": "light.type", "value": "spot"}
    dark = json.loads(text)
    dark["nodes"][2] = {"name": "Lamp", "extras": {"kind": "lamp", "light.type": "spot"}}
    assert grade(json.dumps(dark), rule, file="a.gltf", gold=text).score == 0.0


@pytest.mark.parametrize("name", [r"\ud800", "é", "x" * 300])
def test_a_name_that_nobody_can_be_told_masks_nothing(grade, name):
    text = GODOT.replace('name="A"', f'name="{name}"')
    verdict = grade(text, {"rule": "within", "kind": "crate", "low": [0, 0], "high": [1, 1]}, gold=GODOT)
    assert (verdict.status, verdict.score) == ("graded", 0.0), verdict


def test_a_scene_that_does_not_load_says_why(grade):
    verdict = grade(GODOT.replace('parent="Room"', 'parent="Hall"'), HOLD[0])
    assert (verdict.score, verdict.components) == (0.0, {"loads": 0.0})
    assert "line 8: the parent 'Hall' is not defined above" in verdict.evidence[0].text
    assert "crate.tscn" in grade(GODOT, HOLD[0], project={"floor.tscn": ""}).evidence[0].text


@pytest.mark.parametrize("number", ["nan", "inf", "1e400", "1e30"])
def test_positions_that_are_no_place_are_refused(grade, number):
    assert grade(GODOT.replace("Vector2(50, 20)", f"Vector2(50, {number})"), HOLD[0], gold=GODOT).score == 0.0


def test_gltf_has_materials_lights_and_things_on_things(grade):
    rules = (
        {"rule": "has", "kind": "table", "property": "material.pbrMetallicRoughness.metallicFactor", "value": 0.25},
        {"rule": "has", "kind": "lamp", "property": "light.type", "value": "spot"},
        {"rule": "has", "kind": "lamp", "property": "light.color", "value": [1, 1, 0]},
        {"rule": "on", "kind": "cup", "to": "table"},
        {"rule": "place", "kind": "cup", "at": [0.5, 2.5, 0]},
        {"rule": "apart", "kinds": ["cup", "table"]},
    )
    text = json.dumps(GLTF)
    assert grade(text, *rules, file="a.gltf").score == 1.0
    rule = {"rule": "has", "kind": "cup", "property": "weight", "value": 3}
    heavy = text.replace('"kind": "cup"', f'"kind": "cup", "weight": {10**400}')
    verdict = grade(heavy, rule, file="a.gltf", gold=text)
    assert (verdict.status, verdict.score) == ("graded", 0.0), verdict
    for old, new in (("0.25", "0.5"), ('"spot"', '"point"'), ("2.5", "2.4"), ("[1, 1, 0]", "[1, 0, 0]")):
        assert grade(text.replace(old, new), *rules, file="a.gltf", gold=text).score == 0.0
    assert "no valid JSON" in grade(text[:-1], *rules, file="a.gltf", gold=text).evidence[0].text


def test_matrices_of_gltf_nodes_and_their_children_are_followed():
    turned = {
        "rotation": [0, 0, math.sin(math.pi / 4), math.cos(math.pi / 4)],
        "translation": [1, 0, 0],
        "children": [1],
    }
    document = {"asset": {"version": "2.0"}, "nodes": [turned, {"translation": [2, 0, 0]}]}
    found, why = objects("a.gltf", json.dumps(document).encode(), {}, {})
    assert not why
    assert found[1].at == pytest.approx([1, 2, 0])


def test_no_rules_would_pass_everything_and_are_the_tasks_fault(grade):
    assert grade(GODOT).why == "reference-missing"


# -- mazes


def graph_solution(grid: Grid) -> int | None:
    networkx = pytest.importorskip("networkx")
    graph = networkx.DiGraph()
    bits = sorted({1 << n for n in range(3)})
    for held in range(8):
        for x in range(grid.size[0]):
            for y in range(grid.size[1]):
                for dx, dy in ((1, 0), (0, 1), (-1, 0), (0, -1)):
                    to = (x + dx, y + dy)
                    inside = 0 <= to[0] < grid.size[0] and 0 <= to[1] < grid.size[1]
                    needed = grid.doors.get(to, 0)
                    if inside and to not in grid.walls and all(held & bit for bit in bits if needed & bit):
                        graph.add_edge(((x, y), held), (to, held | grid.keys.get(to, 0)))
    begin = (grid.start, grid.keys.get(grid.start, 0))
    ends = [(grid.goal, held) for held in range(8)]
    found = networkx.single_source_shortest_path_length(graph, begin) if begin in graph else {begin: 0}
    return min((found[end] for end in ends if end in found), default=None)


def test_the_solver_agrees_with_networkx():
    rng, solved = random.Random(5), 0
    for _ in range(60):
        size = (rng.randint(2, 6), rng.randint(2, 6))
        cells = [(x, y) for x in range(size[0]) for y in range(size[1])]
        rng.shuffle(cells)
        start, goal, *rest = cells
        keys = {cell: 1 << rng.randrange(3) for cell in rest[:2]}
        doors = {cell: 1 << rng.randrange(3) for cell in rest[2:5]}
        walls = set(rest[5 : 5 + len(rest) // 4])
        grid = Grid(size, walls, start, goal, keys, doors)
        assert solve(grid) == graph_solution(grid), grid
        solved += solve(grid) is not None
    assert 15 < solved < 55
