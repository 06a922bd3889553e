"""Is a glTF 2.0 file (JSON or binary) valid? After the rules of the specification (Khronos).

`problems` reads the container (`checks.gltf_asset`), the document's shape (`checks.gltf_schema`), what its parts mean
together, and the data that accessors give. Images are looked at as far as their headers.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from temper.verifiers.checks import gltf_schema
from temper.verifiers.checks.gltf_asset import (
    COLUMNS,
    COMPONENTS,
    WIDTHS,
    Asset,
    BrokenError,
    Format,
    element_size,
    known,
    scale,
)

MOST = 20  # problems that are told
_BYTE, _SHORT, _UINT, _FLOAT = (5121, True), (5123, True), 5125, (5126, False)
_UNIT = {_FLOAT, _BYTE, _SHORT}
_SIGNED = _UNIT | {(5120, True), (5122, True)}
# Accessor types and (component type, normalized) that an attribute may have.
_ATTRIBUTES: dict[str, tuple[set[str], set[Format]]] = {
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
_IMAGES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"RIFF", "image/webp"))


def problems(name: str, content: bytes, files: Mapping[str, bytes]) -> list[str]:
    """What makes the file invalid, at most `MOST`; empty for a valid one. `files`: by the names that URIs give."""
    try:
        asset = _Rules(name, content, files)
        found = list(itertools.islice(gltf_schema.problems(asset.document), MOST))
        return found or list(itertools.islice(asset.problems(), MOST))
    except BrokenError as error:
        return [str(error)]
    except RecursionError:
        return ["nested too deep"]


class _Rules(Asset):
    """Each method gives what is wrong about one kind of part, as "where: what"."""

    def problems(self) -> Iterator[str]:
        """In stages, each of which presumes that those before it found nothing."""
        for stage in (
            (self._asset, self._buffers, self._views, self._accessors),
            (self._images, self._materials, self._meshes, self._cameras, self._nodes, self._skins, self._uses),
            (self._animations, self._values),
        ):
            found = [problem for check in stage for problem in itertools.islice(check(), MOST)]
            yield from found
            if found:
                return

    def _asset(self) -> Iterator[str]:
        asset, document = self.document["asset"], self.document
        version, least = ([int(n) for n in asset.get(key, "2.0").split(".")] for key in ("version", "minVersion"))
        if version[0] != 2 or least > version:
            yield f"asset: version {asset['version'][:20]} cannot be read"
        used = document.get("extensionsUsed", [])
        for name in document.get("extensionsRequired", []):
            if name not in used:
                yield f"extensionsRequired: {name[:60]} is not in extensionsUsed"
        if "KHR_mesh_quantization" in used and "KHR_mesh_quantization" not in document.get("extensionsRequired", []):
            yield "extensionsUsed: KHR_mesh_quantization has to be required"
        lights = document.get("extensions", {}).get("KHR_lights_punctual", {}).get("lights", [])
        for n, light in enumerate(lights):
            spot = light.get("spot")
            if light["type"] == "spot" and spot is None:
                yield f"lights/{n}: a spot light without its spot"
            elif spot and spot.get("outerConeAngle", math.pi / 4) <= spot.get("innerConeAngle", 0):
                yield f"lights/{n}: the outer cone is not wider than the inner one"

    def _buffers(self) -> Iterator[str]:
        for n, buffer in enumerate(self.all("buffers")):
            uri = buffer.get("uri", "")
            try:
                data = self.data(n)
            except BrokenError as error:
                yield f"buffers/{n}: {error}"
                continue
            media = re.split("[;,]", uri[5:])[0]
            if uri.startswith("data:") and media not in ("application/octet-stream", "application/gltf-buffer"):
                yield f"buffers/{n}: media type {media[:40]}"
            if data is not None and len(data) < buffer["byteLength"]:
                yield f"buffers/{n}: {len(data)} bytes are there, {buffer['byteLength']} were said"
            if data is None and not uri and self.glb and n == 0:
                yield "buffers/0: no binary chunk"

    def _views(self) -> Iterator[str]:
        for n, view in enumerate(self.all("bufferViews")):
            offset, length, stride = view.get("byteOffset", 0), view["byteLength"], view.get("byteStride")
            if offset + length > self.all("buffers")[view["buffer"]]["byteLength"]:
                yield f"bufferViews/{n}: does not fit its buffer"
            if stride is not None and (stride > length or view.get("target") == 34963):
                yield f"bufferViews/{n}: byteStride is too large, or not for vertices"

    def _images(self) -> Iterator[str]:
        webp = "EXT_texture_webp" in self.document.get("extensionsUsed", [])
        kinds: list[str] = []
        for n, image in enumerate(self.all("images")):
            kinds.append(image.get("mimeType", ""))
            if ("uri" in image) == ("bufferView" in image):
                yield f"images/{n}: expected either uri or bufferView"
                continue
            if "bufferView" in image and "mimeType" not in image:
                yield f"images/{n}: bufferView without mimeType"
            try:
                media, data = self.resource(image["uri"]) if "uri" in image else ("", self.view(image["bufferView"]))
            except BrokenError as error:
                yield f"images/{n}: {error}"
                continue
            declared = image.get("mimeType", media)
            if media and media not in ("image/png", "image/jpeg", "image/webp"):
                yield f"images/{n}: media type {media[:40]}"
            found = next((kind for magic, kind in _IMAGES if data and data.startswith(magic)), "")
            kinds[n] = found or declared
            if found and declared and found != declared:
                yield f"images/{n}: declared {declared[:40]}, found {found}"
            if found == "image/webp" and not webp:
                yield f"images/{n}: WebP needs EXT_texture_webp"
            if data and found and _cut(data, found):
                yield f"images/{n}: the image's header is damaged or cut short"
        for n, texture in enumerate(self.all("textures")):
            other = texture.get("extensions", {}).get("EXT_texture_webp", {}).get("source")
            if "source" in texture and kinds[texture["source"]] == "image/webp":
                yield f"textures/{n}: WebP belongs into EXT_texture_webp"
            if other is not None and kinds[other] not in ("image/webp", ""):
                yield f"textures/{n}: EXT_texture_webp with {kinds[other]}"

    def _materials(self) -> Iterator[str]:
        for n, mesh in enumerate(self.all("meshes")):
            for m, primitive in enumerate(mesh["primitives"]):
                where, given = f"meshes/{n}/primitives/{m}", primitive["attributes"]
                variants = primitive.get("extensions", {}).get("KHR_materials_variants", {}).get("mappings", [])
                names = [variant for mapping in variants for variant in mapping["variants"]]
                if len(set(names)) < len(names):
                    yield f"{where}: a variant occurs twice"
                if "material" not in primitive:
                    continue
                material = self.all("materials")[primitive["material"]]
                sets = set(_texcoords(material))
                if lacking := sorted(at for at in sets if f"TEXCOORD_{at}" not in given):
                    yield f"{where}: its material needs TEXCOORD_{lacking[0]}"
                for extension, texture in _NEEDS_TANGENTS.items():
                    has = texture in material.get("extensions", {}).get(extension, {})
                    if has and "normalTexture" not in material and "TANGENT" not in given:
                        yield f"{where}: {extension} needs tangents"

    def _accessors(self) -> Iterator[str]:
        for n, accessor in enumerate(self.all("accessors")):
            where, kind = f"accessors/{n}", accessor["type"]
            if not known(accessor):
                continue
            size = int(COMPONENTS[accessor["componentType"]][-1])
            offset, count = accessor.get("byteOffset", 0), accessor["count"]
            if accessor.get("normalized") and accessor["componentType"] in (5125, 5126):
                yield f"{where}: cannot be normalized"
            if kind in COLUMNS and offset % 4:
                yield f"{where}: matrices have to be aligned to 4 bytes"
            for key in ("min", "max"):
                if len(accessor.get(key, [0] * WIDTHS[kind])) != WIDTHS[kind]:
                    yield f"{where}: {key} has {len(accessor[key])} components, {kind} has {WIDTHS[kind]}"
            if "bufferView" not in accessor:
                if "byteOffset" in accessor:
                    yield f"{where}: byteOffset without bufferView"
            else:
                stride, element = self.stride(accessor), element_size(accessor)
                if stride < element:
                    yield f"{where}: byteStride {stride} is less than an element's {element} bytes"
                yield from self._fits(where, accessor["bufferView"], offset, (count - 1) * stride + element, size)
            if sparse := accessor.get("sparse"):
                if sparse["count"] > count:
                    yield f"{where}: sparse has more elements than the accessor"
                index = COMPONENTS.get(sparse["indices"]["componentType"], "u1")
                for part, width, unit in (
                    ("indices", int(index[-1]), int(index[-1])),
                    ("values", size * WIDTHS[kind], size),
                ):
                    at = sparse[part]
                    if "byteStride" in self.all("bufferViews")[at["bufferView"]]:
                        yield f"{where}: sparse {part} in a bufferView with byteStride"
                    length = width * sparse["count"]
                    yield from self._fits(f"{where}/sparse", at["bufferView"], at.get("byteOffset", 0), length, unit)

    def _fits(self, where: str, index: int, offset: int, length: int, size: int) -> Iterator[str]:
        view = self.all("bufferViews")[index]
        if offset % size or (offset + view.get("byteOffset", 0)) % size:
            yield f"{where}: its offset is not aligned to {size} bytes"
        if offset + length > view["byteLength"]:
            yield f"{where}: needs bytes {offset}..{offset + length} of bufferViews/{index} ({view['byteLength']})"

    def _meshes(self) -> Iterator[str]:
        accessors = self.all("accessors")
        for n, mesh in enumerate(self.all("meshes")):
            targets = {len(primitive.get("targets", [])) for primitive in mesh["primitives"]}
            if len(targets) > 1:
                yield f"meshes/{n}: primitives with different numbers of targets"
            elif "weights" in mesh and len(mesh["weights"]) != next(iter(targets)):
                yield f"meshes/{n}: {len(mesh['weights'])} weights for {next(iter(targets))} targets"
            for m, primitive in enumerate(mesh["primitives"]):
                where, given = f"meshes/{n}/primitives/{m}", primitive["attributes"]
                yield from self._attributes(where, given, morph=False)
                if len({accessors[index]["count"] for index in given.values()}) > 1:
                    yield f"{where}: accessors of different counts"
                for target in primitive.get("targets", []):
                    yield from self._attributes(f"{where}/targets", target, morph=True)
                    for name, index in target.items():
                        base = given.get(name)
                        if base is None or accessors[base]["count"] != accessors[index]["count"]:
                            yield f"{where}/targets: {name[:40]} has no base of the same count"
                if (indices := primitive.get("indices")) is not None:
                    kind, (component, normalized) = self.format(indices)
                    if kind != "SCALAR" or component not in (5121, 5123, 5125) or normalized:
                        yield f"{where}: indices of an invalid format"

    def _attributes(self, where: str, given: Mapping[str, int], morph: bool) -> Iterator[str]:
        quantized = "KHR_mesh_quantization" in self.document.get("extensionsUsed", [])
        sets: Counter[str] = Counter()
        for name, index in given.items():
            accessor = self.all("accessors")[index]
            if accessor["componentType"] == _UINT:
                yield f"{where}: {name[:40]} of unsigned integers"
            if not known(accessor):
                yield f"{where}: {name[:40]} of an unknown type"
                continue
            if "bufferView" in accessor and (accessor.get("byteOffset", 0) % 4 or self.stride(accessor) % 4):
                yield f"{where}: {name[:40]} is not aligned to 4 bytes"
            if name.startswith("_"):
                continue
            parts = re.fullmatch(r"(POSITION|NORMAL|TANGENT)|(TEXCOORD|COLOR|JOINTS|WEIGHTS)_(0|[1-9][0-9]*)", name)
            base = parts and (parts[1] or parts[2])
            if not base or (morph and base not in _MORPHED):
                yield f"{where}: no attribute is called {name[:40]!r}"
                continue
            sets[base] += 1
            types, formats = _ATTRIBUTES[base]
            kind, format = self.format(index)
            if morph:
                types, formats = ({"VEC3"} if base == "TANGENT" else types), (_SIGNED if parts[2] else formats)
            loose = quantized and base in ("POSITION", "NORMAL", "TANGENT", "TEXCOORD")
            if kind not in types or (format not in formats and not loose):
                yield f"{where}: {name} of an invalid format"
            if base == "POSITION" and not {"min", "max"} <= accessor.keys():
                yield f"{where}: POSITION without min and max"
        for base in ("TEXCOORD", "COLOR", "JOINTS", "WEIGHTS"):
            if any(f"{base}_{n}" not in given for n in range(sets[base])):
                yield f"{where}: {base} sets are not numbered from 0 on"
        if sets["JOINTS"] != sets["WEIGHTS"]:
            yield f"{where}: {sets['JOINTS']} sets of joints, {sets['WEIGHTS']} of weights"

    def _cameras(self) -> Iterator[str]:
        for n, camera in enumerate(self.all("cameras")):
            kinds = [kind for kind in ("orthographic", "perspective") if kind in camera]
            if len(kinds) != 1 or (camera["type"] in ("orthographic", "perspective") and camera["type"] != kinds[0]):
                yield f"cameras/{n}: expected one of orthographic and perspective, as its type says"
                continue
            lens = camera[kinds[0]]
            if lens.get("zfar", math.inf) <= lens["znear"] or 0 in (lens.get("xmag", 1), lens.get("ymag", 1)):
                yield f"cameras/{n}: an empty view"

    def _nodes(self) -> Iterator[str]:
        nodes, parents = self.all("nodes"), self.parents()
        children = Counter(child for node in nodes for child in node.get("children", []))
        yield from (f"nodes/{n}: has two parents" for n, times in children.items() if times > 1)
        rooted = set(range(len(nodes))) - parents.keys()
        below = list(rooted)
        while below:
            new = [child for child in nodes[below.pop()].get("children", []) if child not in rooted]
            rooted.update(new)
            below += new
        yield from (f"nodes/{n}: is its own ancestor" for n in range(len(nodes)) if n not in rooted)
        for n, scene in enumerate(self.all("scenes")):
            yield from (f"scenes/{n}: node {at} is no root" for at in scene.get("nodes", []) if at in parents)
        for n, node in enumerate(nodes):
            yield from self._node(f"nodes/{n}", node)

    def _node(self, where: str, node: dict[str, Any]) -> Iterator[str]:
        if "matrix" in node:
            if {"translation", "rotation", "scale"} & node.keys():
                yield f"{where}: matrix beside translation, rotation or scale"
            if not _decomposable(np.array(node["matrix"], float).reshape(4, 4).T):
                yield f"{where}: its matrix is no translation, rotation and scale"
        if "rotation" in node and abs(math.hypot(*node["rotation"]) - 1) > 5e-4:
            yield f"{where}: its rotation is not of unit length"
        if "mesh" not in node:
            yield from (f"{where}: {key} without mesh" for key in ("skin", "weights") if key in node)
            return
        primitives = self.all("meshes")[node["mesh"]]["primitives"]
        if "skin" in node and not any("JOINTS_0" in primitive["attributes"] for primitive in primitives):
            yield f"{where}: a skin, and a mesh without joints"
        if "weights" in node and len(node["weights"]) != len(primitives[0].get("targets", [])):
            yield f"{where}: {len(node['weights'])} weights for {len(primitives[0].get('targets', []))} targets"

    def _skins(self) -> Iterator[str]:
        parents, accessors = self.parents(), self.all("accessors")

        def line(node: int) -> list[int]:
            found = [node]
            while found[-1] in parents and len(found) <= len(parents):
                found.append(parents[found[-1]])
            return found

        for n, skin in enumerate(self.all("skins")):
            where = f"skins/{n}"
            common = set.intersection(*(set(line(joint)) for joint in skin["joints"]))
            if not common:
                yield f"{where}: joints without a common root"
            elif "skeleton" in skin and skin["skeleton"] not in common:
                yield f"{where}: its skeleton is no common root"
            if (index := skin.get("inverseBindMatrices")) is not None:
                accessor = accessors[index]
                if self.format(index) != ("MAT4", _FLOAT) or accessor["count"] < len(skin["joints"]):
                    yield f"{where}: inverseBindMatrices of an invalid format, or too few"
            users = [k for k, node in enumerate(self.all("nodes")) if node.get("skin") == n]
            for m, scene in enumerate(self.all("scenes")):
                roots = set(scene.get("nodes", []))
                seen = any(line(user)[-1] in roots for user in users)
                if seen and not all(line(joint)[-1] in roots for joint in skin["joints"]):
                    yield f"{where}: scene {m} shows its mesh and not its joints"

    def _animations(self) -> Iterator[str]:
        for n, animation in enumerate(self.all("animations")):
            targets: Counter[tuple[Any, Any]] = Counter()
            for m, channel in enumerate(animation["channels"]):
                where, target = f"animations/{n}/channels/{m}", channel["target"]
                pointed = "KHR_animation_pointer" in target.get("extensions", {})
                if pointed and ("node" in target or target["path"] != "pointer"):
                    yield f"{where}: a pointer beside a node, or its path is not 'pointer'"
                if not 0 <= channel["sampler"] < len(animation["samplers"]):
                    yield f"{where}: no sampler {channel['sampler']}"
                    continue
                if "node" in target:
                    targets[target["node"], target["path"]] += 1
                    node = self.all("nodes")[target["node"]]
                    mesh = self.all("meshes")[node["mesh"]] if "mesh" in node else {"primitives": [{}]}
                    morphs = len(mesh["primitives"][0].get("targets", []))
                    if target["path"] == "weights" and not morphs:
                        yield f"{where}: weights of a mesh without targets"
                    if target["path"] in ("translation", "rotation", "scale") and "matrix" in node:
                        yield f"{where}: {target['path']} of a node with a matrix"
                    yield from self._output(where, animation["samplers"][channel["sampler"]], target["path"], morphs)
            if any(times > 1 for times in targets.values()):
                yield f"animations/{n}: two channels have one target"
            for m, sampler in enumerate(animation["samplers"]):
                yield from self._input(f"animations/{n}/samplers/{m}", sampler)

    def _output(self, where: str, sampler: dict[str, Any], path: str, morphs: int) -> Iterator[str]:
        if path not in _OUTPUTS:
            return
        kind, format = self.format(sampler["output"])
        if kind != _OUTPUTS[path][0] or format not in _OUTPUTS[path][1]:
            yield f"{where}: output of an invalid format for {path}"
        cubic = sampler.get("interpolation") == "CUBICSPLINE"
        frames, found = (self.all("accessors")[sampler[key]]["count"] for key in ("input", "output"))
        wanted = frames * (3 if cubic else 1) * (max(morphs, 1) if path == "weights" else 1)
        if found != wanted:
            yield f"{where}: {found} outputs, expected {wanted}"
        values = self.elements(sampler["output"]) if path == "rotation" and found == wanted else None
        if values is not None and kind == "VEC4":
            lengths = np.linalg.norm((values[1::3] if cubic else values) / scale(format), axis=1)
            if (abs(lengths - 1) > 5e-4 + 0.01 * (format != _FLOAT)).any():
                yield f"{where}: rotations are not of unit length"

    def _input(self, where: str, sampler: dict[str, Any]) -> Iterator[str]:
        accessor = self.all("accessors")[sampler["input"]]
        if self.format(sampler["input"]) != ("SCALAR", _FLOAT):
            yield f"{where}: input of an invalid format"
        if not {"min", "max"} <= accessor.keys():
            yield f"{where}: input without min and max"
        if sampler.get("interpolation") == "CUBICSPLINE" and accessor["count"] < 2:
            yield f"{where}: a cubic spline needs two inputs"
        values = self.elements(sampler["input"])
        if values is not None and ((values < 0).any() or (np.diff(values[:, 0]) <= 0).any()):
            yield f"{where}: input is negative, or does not increase"

    def _uses(self) -> Iterator[str]:
        """A buffer view serves one purpose; one with several vertex attributes has a stride."""
        accessors, views = self.all("accessors"), self.all("bufferViews")
        uses: dict[int, set[str]] = {n: set() for n in range(len(views))}
        vertices: dict[int, set[int]] = {n: set() for n in range(len(views))}

        def note(index: int | None, use: str) -> None:
            if index is not None and "bufferView" in accessors[index]:
                uses[accessors[index]["bufferView"]].add(use)
                if use == "vertices":
                    vertices[accessors[index]["bufferView"]].add(index)

        for primitive in (primitive for mesh in self.all("meshes") for primitive in mesh["primitives"]):
            note(primitive.get("indices"), "indices")
            for attributes in (primitive["attributes"], *primitive.get("targets", [])):
                for index in attributes.values():
                    note(index, "vertices")
        for skin in self.all("skins"):
            note(skin.get("inverseBindMatrices"), "matrices")
        for sampler in (sampler for animation in self.all("animations") for sampler in animation["samplers"]):
            for key in ("input", "output"):
                note(sampler[key], "animation")
        for image in self.all("images"):
            if "bufferView" in image:
                uses[image["bufferView"]].add("image")
        for n, view in enumerate(views):
            target = {34962: {"vertices"}, 34963: {"indices"}}.get(view.get("target"), set())
            if len(uses[n] | target) > 1:
                yield f"bufferViews/{n}: used for {' and '.join(sorted(uses[n] | target))}"
            if "byteStride" in view and uses[n] - {"vertices"}:
                yield f"bufferViews/{n}: byteStride with {min(uses[n] - {'vertices'})}"
            if len(vertices[n]) > 1 and "byteStride" not in view:
                yield f"bufferViews/{n}: several attributes, and no byteStride"

    # -- values

    def _values(self) -> Iterator[str]:
        for n, accessor in enumerate(self.all("accessors")):
            if known(accessor):
                yield from self._extent(n, accessor)
        for n, mesh in enumerate(self.all("meshes")):
            joints = {
                len(self.all("skins")[node["skin"]]["joints"])
                for node in self.all("nodes")
                if node.get("mesh") == n and "skin" in node
            }
            for m, primitive in enumerate(mesh["primitives"]):
                yield from self._vertices(f"meshes/{n}/primitives/{m}", primitive, min(joints, default=math.inf))
        for n, skin in enumerate(self.all("skins")):
            index = skin.get("inverseBindMatrices")
            values = None if index is None else self.elements(index)
            if values is not None and (values[:, 3::4] != [0, 0, 0, 1]).any():
                yield f"skins/{n}: the last row of an inverse bind matrix is not 0 0 0 1"

    def _extent(self, n: int, accessor: dict[str, Any]) -> Iterator[str]:
        try:
            values = self.elements(n)
        except BrokenError as error:
            yield f"accessors/{n}: {error}"
            return
        if values is None:
            return
        if not np.isfinite(values).all():
            yield f"accessors/{n}: a value is not finite"
            return
        cast = np.float32 if accessor["componentType"] == 5126 else np.float64
        for key, found in (("min", values.min(0)), ("max", values.max(0))):
            if key in accessor and (np.array(accessor[key], float).astype(cast) != found).any():
                yield f"accessors/{n}: {key} is not that of its values"

    def _vertices(self, where: str, primitive: dict[str, Any], joints: float) -> Iterator[str]:
        given = primitive["attributes"]
        count = self.all("accessors")[next(iter(given.values()))]["count"]
        index = primitive.get("indices")
        if index is not None and (values := self.elements(index)) is not None:
            restart = {5121: 0xFF, 5123: 0xFFFF, 5125: 0xFFFFFFFF}[self.all("accessors")[index]["componentType"]]
            if values.max() >= min(count, restart):
                yield f"{where}: index {values.max():.0f} of {count} vertices"
        found = {name: self.elements(at) for name, at in given.items()}
        quantized = "KHR_mesh_quantization" in self.document.get("extensionsUsed", [])
        weights, used = [], []
        for name, values in found.items():
            if values is None:
                continue
            base, values = name.partition("_")[0], values / scale(self.format(given[name])[1])
            if base in ("NORMAL", "TANGENT") and not quantized:
                if (abs(np.linalg.norm(values[:, :3], axis=1) - 1) > 5e-4).any():
                    yield f"{where}: {name} is not of unit length"
                if base == "TANGENT" and (abs(values[:, 3]) != 1).any():
                    yield f"{where}: the sign of a tangent is not 1 or -1"
            if base == "COLOR" and ((values < 0).any() or (values > 1).any()):
                yield f"{where}: {name} is not within 0..1"
            if base == "JOINTS":
                used.append(values)
                if values.max() >= joints:
                    yield f"{where}: joint {values.max():.0f} of {joints}"
            if base == "WEIGHTS":
                weights.append(values)
                if (values < 0).any():
                    yield f"{where}: a weight is negative"
        if weights and len(weights) == len(used):
            total = np.concatenate(weights, 1)
            if (abs(total.sum(1) - 1) > 2e-3 + 0.004 * len(weights)).any():
                yield f"{where}: weights do not sum to 1"
            at = np.where(total > 0, np.concatenate(used, 1), -1 - np.arange(total.shape[1]))
            if (np.diff(np.sort(at, 1), axis=1) == 0).any():
                yield f"{where}: a vertex uses a joint twice"


def _decomposable(matrix: np.ndarray) -> bool:
    """Whether a 4x4 matrix is a translation, a rotation and a scale."""
    axes = matrix[:3, :3]
    lengths = np.linalg.norm(axes, axis=0)
    if (matrix[3] != [0, 0, 0, 1]).any() or not lengths.all():
        return bool((matrix[3] == [0, 0, 0, 1]).all())
    axes = axes / lengths
    return bool(abs(axes.T @ axes - np.eye(3)).max() < 5e-4)


def _texcoords(material: Any) -> Iterator[int]:
    """Sets of texture coordinates that a material uses."""
    if isinstance(material, dict):
        if "index" in material:
            moved = material.get("extensions", {}).get("KHR_texture_transform", {})
            yield moved.get("texCoord", material.get("texCoord", 0))
        for key, value in material.items():
            if key != "extras":
                yield from _texcoords(value)


def _cut(data: bytes, kind: str) -> bool:
    """Whether an image's header is damaged."""
    if kind == "image/png":
        return len(data) < 33 or data[12:16] != b"IHDR"
    if kind == "image/jpeg":
        return len(data) < 4 or int.from_bytes(data[4:6]) < 2
    return len(data) < 16 or data[8:12] != b"WEBP"
