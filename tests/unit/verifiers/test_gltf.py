"""glTF 2.0: valid and invalid told apart. Codes in brackets are those of Khronos' glTF-Validator, whose own test corpus
(a `*.report.json` beside each asset) is read where it is there.
"""

from __future__ import annotations

import base64
import copy
import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from temper.verifiers.checks.gltf import problems

OUTSIDE = Path(__file__).parents[4] / "shared" / "data"

POINTS = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]], "<f4").tobytes()
INDICES = np.array([0, 1, 2, 0], "<u2").tobytes()
TIMES = np.array([0, 1, 2], "<f4").tobytes()
DATA = POINTS + INDICES + TIMES


def triangle() -> dict[str, Any]:
    """A document with one of everything that the mutations below need."""
    uri = "data:application/octet-stream;base64," + base64.b64encode(DATA).decode()
    return {
        "asset": {"version": "2.0"},
        "extensionsUsed": ["KHR_lights_punctual"],
        "extensions": {"KHR_lights_punctual": {"lights": [{"type": "point", "intensity": 40.0}]}},
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [
            {"mesh": 0, "children": [1]},
            {"translation": [0, 2, 0], "rotation": [0, 0, 0, 1], "extensions": {"KHR_lights_punctual": {"light": 0}}},
        ],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1, "material": 0}]}],
        "materials": [{"pbrMetallicRoughness": {"baseColorFactor": [1, 0, 0, 1], "metallicFactor": 0.5}}],
        "cameras": [{"type": "perspective", "perspective": {"yfov": 1.0, "znear": 0.1, "zfar": 10}}],
        "animations": [
            {
                "samplers": [{"input": 2, "output": 0}],
                "channels": [{"sampler": 0, "target": {"node": 1, "path": "scale"}}],
            }
        ],
        "buffers": [{"uri": uri, "byteLength": 56}],
        "bufferViews": [
            {"buffer": 0, "byteLength": 36},
            {"buffer": 0, "byteOffset": 36, "byteLength": 8},
            {"buffer": 0, "byteOffset": 44, "byteLength": 12},
            {"buffer": 0, "byteLength": 36},
        ],
        "accessors": [
            {"bufferView": 3, "componentType": 5126, "count": 3, "type": "VEC3", "min": [0, 0, 0], "max": [1, 1, 0]},
            {"bufferView": 1, "componentType": 5123, "count": 3, "type": "SCALAR"},
            {"bufferView": 2, "componentType": 5126, "count": 3, "type": "SCALAR", "min": [0], "max": [2]},
        ],
    }


def valid() -> dict[str, Any]:
    document = triangle()
    document["accessors"].append({**document["accessors"][0], "bufferView": 0})
    document["animations"][0]["samplers"][0]["output"] = 3
    return document


def judged(document: dict[str, Any]) -> list[str]:
    return problems("a.gltf", json.dumps(document).encode(), {})


def glb(document: dict[str, Any], binary: bytes = b"") -> bytes:
    text = json.dumps(document).encode()
    text += b" " * (-len(text) % 4)
    chunks = struct.pack("<I4s", len(text), b"JSON") + text
    if binary:
        chunks += struct.pack("<I4s", len(binary), b"BIN\0") + binary
    return struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks


def test_the_document_that_is_mutated_is_valid():
    assert judged(valid()) == []


def change(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        at: Any = document
        for part in path[:-1]:
            at = at[part]
        if to is None:
            del at[path[-1]]
        else:
            at[path[-1]] = to

    return apply


INVALID = {
    "no version [UNDEFINED_PROPERTY]": change("asset", "version", to=None),
    "a version of many digits": change("asset", "version", to=f"{'9' * 5000}.0"),
    "version 1.0 [UNKNOWN_ASSET_MAJOR_VERSION]": change("asset", "version", to="1.0"),
    "a list for an object [TYPE_MISMATCH]": change("nodes", 0, to=[]),
    "true as an index [INVALID_INDEX]": change("nodes", 0, "mesh", to=True),
    "no such mesh [UNRESOLVED_REFERENCE]": change("nodes", 0, "mesh", to=1),
    "no such buffer view [UNRESOLVED_REFERENCE]": change("accessors", 1, "bufferView", to=9),
    "empty array [EMPTY_ENTITY]": change("cameras", to=[]),
    "factor above 1 [VALUE_NOT_IN_RANGE]": change("materials", 0, "pbrMetallicRoughness", "metallicFactor", to=1.5),
    "three of four numbers [ARRAY_LENGTH_NOT_IN_LIST]": change("nodes", 1, "rotation", to=[0, 0, 1]),
    "rotation not normal [ROTATION_NON_UNIT]": change("nodes", 1, "rotation", to=[0, 0, 0, 0.9]),
    "matrix and translation [NODE_MATRIX_TRS]": change("nodes", 1, "matrix", to=[float(n % 5 == 0) for n in range(16)]),
    "a loop [NODE_LOOP]": change("nodes", 1, "children", to=[0]),
    "a scene of a child [SCENE_NON_ROOT_NODE]": change("scenes", 0, "nodes", to=[1]),
    "zfar before znear [CAMERA_ZFAR_LEQUAL_ZNEAR]": change("cameras", 0, "perspective", "zfar", to=0.05),
    "buffer too short [BUFFER_BYTE_LENGTH_MISMATCH]": change("buffers", 0, "byteLength", to=60),
    "missing file [IO_ERROR]": change("buffers", 0, "uri", to="away.bin"),
    "view too long [BUFFER_VIEW_TOO_LONG]": change("bufferViews", 2, "byteLength", to=16),
    "accessor too long [ACCESSOR_TOO_LONG]": change("accessors", 1, "count", to=5),
    "unaligned [ACCESSOR_TOTAL_OFFSET_ALIGNMENT]": change("bufferViews", 2, "byteOffset", to=42),
    "index out of bounds [ACCESSOR_INDEX_OOB]": change("accessors", 3, "count", to=2),
    "wrong maximum [ACCESSOR_MAX_MISMATCH]": change("accessors", 3, "max", to=[1, 1, 1]),
    "no bounds [MESH_PRIMITIVE_POSITION_ACCESSOR_WITHOUT_BOUNDS]": change("accessors", 0, "min", to=None),
    "float indices [MESH_PRIMITIVE_INDICES_ACCESSOR_INVALID_FORMAT]": change("accessors", 1, "componentType", to=5122),
    "no such attribute [MESH_PRIMITIVE_INVALID_ATTRIBUTE]": change(
        "meshes", 0, "primitives", 0, "attributes", to={"POSITION": 0, "COLOUR": 0}
    ),
    "scale of two outputs [ANIMATION_SAMPLER_OUTPUT_ACCESSOR_INVALID_COUNT]": change("accessors", 2, "count", to=2),
    "view used twice [BUFFER_VIEW_TARGET_OVERRIDE]": change("bufferViews", 3, "target", to=34963),
    "undeclared extension [UNDECLARED_EXTENSION]": change("extensionsUsed", to=None),
    "spot without angles [UNDEFINED_PROPERTY]": change(
        "extensions", "KHR_lights_punctual", "lights", 0, "type", to="spot"
    ),
    "no such light [UNRESOLVED_REFERENCE]": change("extensions", "KHR_lights_punctual", "lights", to=[]),
}


@pytest.mark.parametrize("why", INVALID)
def test_one_change_makes_it_invalid(why):
    document = valid()
    INVALID[why](document)
    assert judged(document), why


def test_binary_files_and_their_damages():
    document = copy.deepcopy(valid())
    del document["buffers"][0]["uri"]
    whole = glb(document, DATA)
    assert problems("a.glb", whole, {}) == []
    damaged = {
        "cut": whole[:-4],
        "magic": b"glTB" + whole[4:],
        "version": whole[:4] + b"\1" + whole[5:],
        "first chunk": whole[:16] + b"NOSJ" + whole[20:],
        "no chunk": glb(document),
        "header only": whole[:12],
        "unaligned": whole[:12] + struct.pack("<I", 3) + whole[16:],
    }
    for why, content in damaged.items():
        assert problems("a.glb", content, {}), why


@pytest.mark.parametrize("uri", ["my%20data.bin", "my data.bin"])  # the validator lets the latter pass as well
def test_files_beside_it_are_found_by_their_uris(uri):
    document = valid()
    document["buffers"][0]["uri"] = uri
    content = json.dumps(document).encode()
    assert problems("a.gltf", content, {"my data.bin": DATA}) == []
    assert problems("a.gltf", content, {"my data.bin": DATA[:-1]})


@pytest.mark.parametrize(
    "content",
    [
        b"", b"null", b"[]", b"\xef\xbb\xbf{}", b"[" * 100_000, b'{"asset": {"version": "2.0"}, "x": NaN}',
        b'{"asset": {"version": "2.0"}, "accessors": [{"componentType": 5126, "count": 1e300, "type": "VEC3", '
        b'"sparse": {"count": 1e299, "indices": {}, "values": {}}}]}',
        b'{"asset": {"version": "2.0"}, "buffers": [{"byteLength": 1e18, "uri": "data:,"}]}',
        b'{"asset":' * 900 + b"1" + b"}" * 900, b"glTF", b"glTF\2\0\0\0\xff\xff\xff\xff",
    ],
)  # fmt: skip
def test_hostile_files_are_invalid_at_once(content):
    began = time.process_time()
    assert problems("a.gltf", content, {})
    assert time.process_time() - began < 1.0


def test_a_count_without_data_costs_nothing():
    document = valid()
    document["accessors"].append({"componentType": 5126, "count": 10**12, "type": "MAT4"})
    began = time.process_time()
    assert judged(document) == []
    assert time.process_time() - began < 0.5


@pytest.mark.outside
def test_the_validators_own_cases_are_told_apart():
    reports = sorted(OUTSIDE.rglob("*.gl[tb]*.report.json"))
    if not reports:
        pytest.skip(f"no reports of glTF-Validator under {OUTSIDE}")
    wrong, refused = [], []
    for report in reports:
        asset = report.with_name(report.name.removesuffix(".report.json"))
        around = [path for path in asset.parent.rglob("*") if path.is_file() and path.suffix != ".json"]
        files = {path.relative_to(asset.parent).as_posix(): path.read_bytes() for path in around}
        bad = json.loads(report.read_text())["issues"]["numErrors"] > 0
        found = problems(asset.name, asset.read_bytes(), files)
        if bad and not found:
            wrong.append(asset.name)
        if found and not bad:
            refused.append((asset.name, found[0]))
    assert refused == []
    assert len(wrong) <= 0.05 * len(reports), wrong
