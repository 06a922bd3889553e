"""What the parts of a glTF asset mean together: materials, meshes, cameras, nodes, skins, animations (Khronos).

One function a kind of part; each gives what is wrong as "where: what", and presumes what `checks.gltf` asks before it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from temper.verifiers.checks.gltf_asset import Asset, known, told

_FLOAT = (5126, False)
_UNIT = {_FLOAT, (5121, True), (5123, True)}
_SIGNED = _UNIT | {(5120, True), (5122, True)}
# Accessor types and (component type, normalized) that an attribute may have.
_ATTRIBUTES = {
    "POSITION": ({"VEC3"}, {_FLOAT}), "NORMAL": ({"VEC3"}, {_FLOAT}), "TANGENT": ({"VEC4"}, {_FLOAT}),
    "TEXCOORD": ({"VEC2"}, _UNIT), "COLOR": ({"VEC3", "VEC4"}, _UNIT),
    "JOINTS": ({"VEC4"}, {(5121, False), (5123, False)}), "WEIGHTS": ({"VEC4"}, _UNIT),
}  # fmt: skip
_MORPHED = {"POSITION", "NORMAL", "TANGENT", "TEXCOORD", "COLOR"}
_OUTPUTS = {
    "translation": ("VEC3", {_FLOAT}), "scale": ("VEC3", {_FLOAT}), "rotation": ("VEC4", _SIGNED),
    "weights": ("SCALAR", _SIGNED),
}  # fmt: skip
_NEEDS_TANGENTS = {"KHR_materials_anisotropy": "anisotropyTexture", "KHR_materials_clearcoat": "clearcoatNormalTexture"}


def materials(asset: Asset) -> Iterator[str]:
    for where, primitive in asset.primitives():
        mappings = primitive.get("extensions", {}).get("KHR_materials_variants", {}).get("mappings", [])
        names = [variant for mapping in mappings for variant in mapping["variants"]]
        yield from told(where, {"a variant occurs twice": len(set(names)) < len(names)})
        if "material" in primitive:
            material, given = asset.all("materials")[primitive["material"]], primitive["attributes"]
            plain = "normalTexture" not in material and "TANGENT" not in given
            extended = material.get("extensions", {})
            lacking = sorted(f"TEXCOORD_{at}" for at in set(_texcoords(material)) if f"TEXCOORD_{at}" not in given)
            tangents = [name for name, key in _NEEDS_TANGENTS.items() if plain and key in extended.get(name, {})]
            yield from told(where, {
                f"its material needs {', '.join(lacking)}": lacking,
                f"{', '.join(tangents)} needs tangents": tangents,
            })  # fmt: skip


def _texcoords(material: Any) -> Iterator[int]:
    """Sets of texture coordinates that a material uses."""
    if isinstance(material, dict):
        if "index" in material:
            moved = material.get("extensions", {}).get("KHR_texture_transform", {})
            yield moved.get("texCoord", material.get("texCoord", 0))
        for name, part in material.items():
            yield from _texcoords(part) if name != "extras" else ()


def meshes(asset: Asset) -> Iterator[str]:
    for where, mesh in asset.each("meshes"):
        targets = {len(primitive.get("targets", [])) for primitive in mesh["primitives"]}
        weights = len(mesh.get("weights", ())) if "weights" in mesh else max(targets)
        yield from told(where, {
            "primitives with different numbers of targets": len(targets) > 1,
            f"{weights} weights for {max(targets)} targets": len(targets) == 1 and weights != max(targets),
        })  # fmt: skip
    accessors = asset.all("accessors")
    for where, primitive in asset.primitives():
        given = primitive["attributes"]
        counts = {name: accessors[index]["count"] for name, index in given.items()}
        yield from _attributes(asset, where, given, morph=False)
        yield from told(where, {"accessors of different counts": len(set(counts.values())) > 1})
        for target in primitive.get("targets", []):
            yield from _attributes(asset, f"{where}/targets", target, morph=True)
            yield from told(f"{where}/targets", {
                f"{name[:40]} has no base of the same count": counts.get(name) != accessors[index]["count"]
                for name, index in target.items()
            })  # fmt: skip
        if "indices" in primitive:
            kind, (component, normalized) = asset.format(primitive["indices"])
            right = kind == "SCALAR" and component in (5121, 5123, 5125) and not normalized
            yield from told(where, {"indices of an invalid format": not right})


def _attributes(asset: Asset, where: str, given: Mapping[str, int], morph: bool) -> Iterator[str]:
    quantized = "KHR_mesh_quantization" in asset.document.get("extensionsUsed", [])
    sets: Counter[str] = Counter()
    for name, index in given.items():
        accessor = asset.all("accessors")[index]
        if not known(accessor):
            yield f"{where}: {name[:40]} of an unknown type"
            continue
        loose = "bufferView" in accessor and (accessor.get("byteOffset", 0) % 4 or asset.stride(accessor) % 4)
        parts = re.fullmatch(r"(POSITION|NORMAL|TANGENT)|(TEXCOORD|COLOR|JOINTS|WEIGHTS)_(0|[1-9][0-9]*)", name)
        base = (parts[1] or parts[2]) if parts else ""
        own, named = name.startswith("_"), base in (_MORPHED if morph else _ATTRIBUTES)
        yield from told(where, {
            f"{name[:40]} of unsigned integers": accessor["componentType"] == 5125,
            f"{name[:40]} is not aligned to 4 bytes": loose,
            f"no attribute is called {name[:40]!r}": not own and not named,
        })  # fmt: skip
        if own or not named:
            continue
        sets[base] += 1
        (types, formats), (kind, format) = _ATTRIBUTES[base], asset.format(index)
        if morph:
            types, formats = ({"VEC3"} if base == "TANGENT" else types), (_SIGNED if parts and parts[2] else formats)
        free = quantized and base in ("POSITION", "NORMAL", "TANGENT", "TEXCOORD")
        yield from told(where, {
            f"{name} of an invalid format": kind not in types or (format not in formats and not free),
            "POSITION without min and max": base == "POSITION" and not {"min", "max"} <= accessor.keys(),
        })  # fmt: skip
    numbered = ("TEXCOORD", "COLOR", "JOINTS", "WEIGHTS")
    gaps = [base for base in numbered if any(f"{base}_{n}" not in given for n in range(sets[base]))]
    yield from told(where, {
        f"{', '.join(gaps)} sets are not numbered from 0 on": gaps,
        f"{sets['JOINTS']} sets of joints, {sets['WEIGHTS']} of weights": sets["JOINTS"] != sets["WEIGHTS"],
    })  # fmt: skip


def cameras(asset: Asset) -> Iterator[str]:
    for where, camera in asset.each("cameras"):
        kinds = [kind for kind in ("orthographic", "perspective") if kind in camera]
        if len(kinds) != 1 or (camera["type"] in ("orthographic", "perspective") and camera["type"] != kinds[0]):
            yield f"{where}: expected one of orthographic and perspective, as its type says"
            continue
        lens = camera[kinds[0]]
        flat = lens.get("zfar", math.inf) <= lens["znear"] or 0 in (lens.get("xmag", 1), lens.get("ymag", 1))
        yield from told(where, {"an empty view": flat})


def nodes(asset: Asset) -> Iterator[str]:
    nodes, parents = asset.all("nodes"), asset.parents()
    children = Counter(child for node in nodes for child in node.get("children", []))
    rooted = set(range(len(nodes))) - parents.keys()
    below = list(rooted)
    while below:
        new = [child for child in nodes[below.pop()].get("children", []) if child not in rooted]
        rooted.update(new)
        below += new
    for where, scene in asset.each("scenes"):
        yield from told(where, {f"node {at} is no root": at in parents for at in scene.get("nodes", [])})
    for n, (where, node) in enumerate(asset.each("nodes")):
        yield from told(where, {
            "has two parents": children[n] > 1,
            "is its own ancestor": n not in rooted,
            "matrix beside translation, rotation or scale": (
                "matrix" in node and {"translation", "rotation", "scale"} & node.keys()
            ),
            "its matrix is no translation, rotation and scale": "matrix" in node and not _decomposable(node["matrix"]),
            "its rotation is not of unit length": abs(math.hypot(*node.get("rotation", (1,))) - 1) > 5e-4,
            "skin or weights without mesh": "mesh" not in node and {"skin", "weights"} & node.keys(),
        })  # fmt: skip
        if "mesh" in node:
            primitives = asset.all("meshes")[node["mesh"]]["primitives"]
            targets = len(primitives[0].get("targets", []))
            jointed = any("JOINTS_0" in primitive["attributes"] for primitive in primitives)
            yield from told(where, {
                "a skin, and a mesh without joints": "skin" in node and not jointed,
                f"weights for {targets} targets": "weights" in node and len(node["weights"]) != targets,
            })  # fmt: skip


def _decomposable(numbers: list[float]) -> bool:
    """Whether a matrix, column by column, is a translation, a rotation and a scale."""
    matrix = np.array(numbers, float).reshape(4, 4).T
    lengths = np.linalg.norm(matrix[:3, :3], axis=0)
    axes = matrix[:3, :3] / np.where(lengths, lengths, 1)
    turned = not lengths.all() or abs(axes.T @ axes - np.eye(3)).max() < 5e-4
    return bool(turned and (matrix[3] == [0, 0, 0, 1]).all())


def skins(asset: Asset) -> Iterator[str]:
    parents, accessors = asset.parents(), asset.all("accessors")

    def line(node: int) -> list[int]:
        """The node and its ancestors."""
        found = [node]
        while found[-1] in parents and len(found) <= len(parents):
            found.append(parents[found[-1]])
        return found

    for n, (where, skin) in enumerate(asset.each("skins")):
        common = set.intersection(*(set(line(joint)) for joint in skin["joints"]))
        matrices = skin.get("inverseBindMatrices")
        roots = [set(scene.get("nodes", [])) for scene in asset.all("scenes")]
        users = [line(at)[-1] for at, node in enumerate(asset.all("nodes")) if node.get("skin") == n]
        ends = {line(joint)[-1] for joint in skin["joints"]}
        yield from told(where, {
            "joints without a common root": not common,
            "its skeleton is no common root": common and skin.get("skeleton", min(common)) not in common,
            "inverseBindMatrices of an invalid format, or too few": matrices is not None and (
                asset.format(matrices) != ("MAT4", _FLOAT) or accessors[matrices]["count"] < len(skin["joints"])
            ),
            "a scene shows its mesh and not its joints": any(r.intersection(users) and not ends <= r for r in roots),
        })  # fmt: skip


def animations(asset: Asset) -> Iterator[str]:
    for n, animation in enumerate(asset.all("animations")):
        targets: Counter[tuple[Any, Any]] = Counter()
        for m, channel in enumerate(animation["channels"]):
            where, target = f"animations/{n}/channels/{m}", channel["target"]
            pointed = "KHR_animation_pointer" in target.get("extensions", {})
            there = channel["sampler"] < len(animation["samplers"])
            yield from told(where, {
                "a pointer beside a node, or its path is not 'pointer'": pointed and (
                    "node" in target or target["path"] != "pointer"
                ),
                f"no sampler {channel['sampler']:.0f}": not there,
            })  # fmt: skip
            if there and "node" in target:
                targets[target["node"], target["path"]] += 1
                yield from _channel(asset, where, target, animation["samplers"][channel["sampler"]])
        yield from told(f"animations/{n}", {"two channels have one target": any(k > 1 for k in targets.values())})
        for m, sampler in enumerate(animation["samplers"]):
            accessor, cubic = asset.all("accessors")[sampler["input"]], sampler.get("interpolation") == "CUBICSPLINE"
            yield from told(f"animations/{n}/samplers/{m}", {
                "input of an invalid format": asset.format(sampler["input"]) != ("SCALAR", _FLOAT),
                "input without min and max": not {"min", "max"} <= accessor.keys(),
                "a cubic spline needs two inputs": cubic and accessor["count"] < 2,
            })  # fmt: skip


def _channel(asset: Asset, where: str, target: dict[str, Any], sampler: dict[str, Any]) -> Iterator[str]:
    node, path = asset.all("nodes")[target["node"]], target["path"]
    mesh = asset.all("meshes")[node["mesh"]] if "mesh" in node else {"primitives": [{}]}
    morphs = len(mesh["primitives"][0].get("targets", []))
    yield from told(where, {
        "weights of a mesh without targets": path == "weights" and not morphs,
        f"{path[:20]} of a node with a matrix": path in ("translation", "rotation", "scale") and "matrix" in node,
    })  # fmt: skip
    if path in _OUTPUTS:
        kind, format = asset.format(sampler["output"])
        frames, found = (asset.all("accessors")[sampler[key]]["count"] for key in ("input", "output"))
        cubic = 3 if sampler.get("interpolation") == "CUBICSPLINE" else 1
        wanted = frames * cubic * (max(morphs, 1) if path == "weights" else 1)
        right = kind == _OUTPUTS[path][0] and format in _OUTPUTS[path][1]
        yield from told(where, {
            f"output of an invalid format for {path}": not right,
            f"{found} outputs, expected {wanted}": found != wanted,
        })  # fmt: skip
