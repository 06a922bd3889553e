"""Godot scenes in text form, after docs.godotengine.org, "TSCN file format". The library godot-parser is a second
reader where it is installed.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest

from temper.domains.game_levels import GameLevels
from temper.verifiers.checks.tscn import BrokenError, nodes, problems, read

OUTSIDE = Path(__file__).parents[4] / "shared" / "data"

SCENE = r"""[gd_scene load_steps=4 format=3 uid="uid://cecaux1sm7mo0"]

[ext_resource type="Texture2D" uid="uid://b2" path="res://icon.svg" id="1_icon"]
[ext_resource type="PackedScene" path="res://enemy.tscn" id="2"]
; shapes
[sub_resource type="RectangleShape2D" id="Shape_a"]
size = Vector2(
	10, 2.5e1)
[sub_resource type="Animation" id="Walk"]
tracks/0/path = NodePath("Body/Sprite:frame")
tracks/0/keys = {
"times": PackedFloat32Array(0, 0.5, 1),
"values": [0, &"name", ^"a/b", null, -inf, [true, {}]],
}
typed = Array[int]([1, 2])
table = Dictionary[String, int]({"a": 1})

[node name="Root" type="Node2D" groups=["a", "b"]]
text = "a \"quoted\" word, a ] bracket
[node name=\"no node\"] and \u00e9"
visible = false

[node name="Body" type="Area2D" parent="."]
[node name="Sprite" type="Sprite2D" parent="Body"]
texture = ExtResource("1_icon")
[node name="Enemy" parent="." instance=ExtResource("2")]
position = Vector2(3, 4)
[node name="Hat" parent="Enemy/Head" index="0"]
visible = true
[connection signal="area_entered" from="Body" to="." method="_on_body"]
[editable path="Enemy"]
"""


def test_a_scene_with_all_kinds_of_values_is_read():
    sections = read(SCENE.encode())
    assert problems(sections, frozenset({"icon.svg", "enemy.tscn"})) == []
    found = {node.path: node for node in nodes(sections)}
    assert list(found) == [".", "Body", "Body/Sprite", "Enemy", "Enemy/Head/Hat"]
    assert found["."].properties["text"] == 'a "quoted" word, a ] bracket\n[node name="no node"] and é'
    assert found["Enemy"].source == "enemy.tscn"
    assert found["Enemy"].properties["position"].args == [3, 4]
    walk = next(s for s in sections if s.attributes.get("id") == "Walk").properties
    assert walk["tracks/0/keys"]["values"] == [0, "name", "a/b", None, -float("inf"), [True, {}]]


def why_not(content: bytes) -> list[str]:
    """What keeps a scene from loading in a project that has what SCENE needs."""
    try:
        return problems(read(content), frozenset({"icon.svg", "enemy.tscn"}))
    except BrokenError as error:
        return [str(error)]


BROKEN = {
    "older format": ("format=3", "format=2"),
    "no header": ("[gd_scene load_steps=4 format=3", "[gd_resource format=3"),
    "unknown section": ("[editable path", "[edit path"),
    "resource after nodes": ('[editable path="Enemy"]', '[ext_resource type="T" path="res://icon.svg" id="9"]'),
    "undefined resource": ('ExtResource("1_icon")', 'ExtResource("1_ikon")'),
    "file not there": ("res://icon.svg", "res://away.svg"),
    "id twice": ('id="2"]', 'id="1_icon"]'),
    "parent not there": ('parent="Body"', 'parent="Boddy"'),
    "two roots": ('type="Area2D" parent="."', 'type="Area2D"'),
    "name twice": ('name="Enemy"', 'name="Body"'),
    "name with a slash": ('name="Sprite"', 'name="Spr/ite"'),
    "no type": ('name="Body" type="Area2D"', 'name="Body"'),
    "connection to nowhere": ('from="Body"', 'from="Head"'),
    "no method": (' method="_on_body"', ""),
    "a parent that is a list": ('parent="Body"', 'parent=["Body"]'),
    "a connection from a value": ('from="Body"', 'from=NodePath("Body")'),
    "unclosed bracket": ("Vector2(3, 4)", "Vector2(3, 4"),
    "unclosed string": ('text = "a', "text = a"),
    "no value": ("visible = true", "visible ="),
    "an expression": ("Vector2(3, 4)", "2 * Vector2(3, 4)"),
    "a word": ("visible = true", "visible = yes"),
    "text between": ("; shapes", "shapes"),
}


@pytest.mark.parametrize("name", ["100%", "v1.0", "@Node@2"])
def test_names_that_the_editor_would_not_give_are_loaded(name):
    assert why_not(SCENE.replace('name="Sprite"', f'name="{name}"', 1).encode()) == []


@pytest.mark.parametrize("why", BROKEN)
def test_one_change_keeps_it_from_loading(why):
    old, new = BROKEN[why]
    assert SCENE.count(old) >= 1
    assert why_not(SCENE.replace(old, new, 1).encode())


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe", b"", b"[gd_scene format=3]\na = " + b"[" * 200_000, b"[gd_scene format=3]\n" + b"a" * 1_000_000,
        b'[gd_scene format=3]\na = "' + b"\\" * 999_999, b"[gd_scene format=3]\n" * 50_000, b"x" * (5 << 20),
        b"[gd_scene format=3]\na = {" + b"1: {" * 1000, b"[gd_scene format=3]\n" + b";\n" * 400_000,
    ],
)  # fmt: skip
def test_hostile_texts_end_at_once(content):
    began = time.process_time()
    assert why_not(content)
    assert time.process_time() - began < 3.0


@pytest.mark.filterwarnings("ignore")  # of the library
def test_another_reader_sees_the_same_nodes():
    godot_parser = pytest.importorskip("godot_parser", reason="godot-parser is not installed")
    for task in itertools.islice(GameLevels().tasks("train", 3), 3):
        text = task.reference["solution"]
        theirs = [section.name for section in godot_parser.parse(text).get_nodes()]
        assert theirs == [s.attributes["name"] for s in read(text.encode()) if s.kind == "node"]


@pytest.mark.outside
def test_scenes_that_shipped_with_the_engine_load():
    found = [path for path in OUTSIDE.rglob("*.tscn") if b"format=3" in path.read_bytes()[:200]]
    if not found:
        pytest.skip(f"no scenes under {OUTSIDE}")
    assert {str(path): why for path in found if (why := problems(read(path.read_bytes())))} == {}
