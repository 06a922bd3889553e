"""The shape of a glTF 2.0 document: which properties objects have, of what type and range, and what they refer to.

A table after the JSON schemas of the glTF 2.0 specification (Khronos, Apache-2.0) and of the ratified extensions that
tasks meet. Enumerations are open there, so unknown values are no error; nor are unknown properties. What properties
mean together (offsets, formats, counts, data) is in `checks.gltf`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

Check = Callable[[Any, str, dict[str, Any]], Iterator[str]]  # (value, where, document) -> what is wrong


def problems(document: Any) -> Iterator[str]:
    """What is wrong with the shape, each as "where: what"."""
    yield from obj("gltf")(document, "", document)


def integer(low: int = 0, high: float = math.inf, step: int = 1) -> Check:
    def check(value: Any, where: str, _: dict[str, Any]) -> Iterator[str]:
        if not isinstance(value, int) or isinstance(value, bool):
            yield f"{where}: expected an integer"
        elif not low <= value <= high or value % step:
            yield f"{where}: {value:.9g} is out of range"

    return check


def number(low: float = -math.inf, high: float = math.inf, *, above: float = -math.inf, zero: bool = False) -> Check:
    """`zero`: 0 is allowed besides the range."""

    def check(value: Any, where: str, _: dict[str, Any]) -> Iterator[str]:
        if not isinstance(value, int | float) or isinstance(value, bool):
            yield f"{where}: expected a number"
        elif not (abs(value) < 1e39 and ((low <= value <= high and value > above) or (zero and value == 0))):
            yield f"{where}: {value!s:.20} is out of range"

    return check


def string(pattern: str = "") -> Check:
    def check(value: Any, where: str, _: dict[str, Any]) -> Iterator[str]:
        if not isinstance(value, str) or not re.match(pattern, value):
            yield f"{where}: expected a string{f' like {pattern}' if pattern else ''}"

    return check


def boolean(value: Any, where: str, _: dict[str, Any]) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{where}: expected true or false"


def ref(*path: str) -> Check:
    """An index into a collection of the document."""

    def check(value: Any, where: str, document: dict[str, Any]) -> Iterator[str]:
        found: Any = document
        for part in path:
            found = found.get(part) if isinstance(found, dict) else None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            yield f"{where}: expected an index"
        elif value >= (len(found) if isinstance(found, list) else 0):
            yield f"{where}: {path[-1]} has no element {value:.9g}"

    return check


def array(of: Check, *lengths: int, unique: bool = False) -> Check:
    def check(value: Any, where: str, document: dict[str, Any]) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{where}: expected an array"
        elif not value or (lengths and len(value) not in lengths):
            yield f"{where}: an array of {len(value)} elements, expected {' or '.join(map(str, lengths)) or 'some'}"
        else:
            for n, item in enumerate(value):
                yield from of(item, f"{where}/{n}", document)
            if unique and len(set(map(repr, value))) < len(value):
                yield f"{where}: an element occurs twice"

    return check


def mapping(of: Check) -> Check:
    def check(value: Any, where: str, document: dict[str, Any]) -> Iterator[str]:
        if not isinstance(value, dict) or not value:
            yield f"{where}: expected an object that is not empty"
        else:
            for name, item in value.items():
                yield from of(item, f"{where}/{name[:40]}", document)

    return check


def obj(kind: str) -> Check:
    def check(value: Any, where: str, document: dict[str, Any]) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{where}: expected an object"
            return
        for name, of in TABLE[kind].items():
            if name.removesuffix("!") in value:
                yield from of(value[name.removesuffix("!")], f"{where}/{name.removesuffix('!')}", document)
            elif name.endswith("!"):
                yield f"{where}: {name[:-1]} is missing"
        yield from _extensions(kind, value, where, document)

    return check


def _extensions(kind: str, value: dict[str, Any], where: str, document: dict[str, Any]) -> Iterator[str]:
    found = value.get("extensions", {})
    if not isinstance(found, dict) or not all(isinstance(item, dict) for item in found.values()):
        yield f"{where}/extensions: expected an object of objects"
        return
    used = document.get("extensionsUsed")
    for name, item in found.items():
        if not isinstance(used, list) or name not in used:
            yield f"{where}/extensions: {name[:60]} is not declared in extensionsUsed"
        places = EXTENSIONS.get(name, {kind: ""})
        if kind not in places:
            yield f"{where}/extensions: {name} does not belong here"
        elif places[kind]:
            yield from obj(places[kind])(item, f"{where}/extensions/{name}", document)


_texture, _colour, _factor = obj("textureInfo"), array(number(0, 1), 3), number(0, 1)
_vec3, _vec4 = array(number(), 3), array(number(), 4)
_version = string(r"[0-9]+\.[0-9]+\Z")
_named = {"name": string()}

TABLE: dict[str, dict[str, Check]] = {
    "gltf": {
        "asset!": obj("asset"), "extensionsUsed": array(string(), unique=True),
        "extensionsRequired": array(string(), unique=True), "scene": ref("scenes"),
        "accessors": array(obj("accessor")), "animations": array(obj("animation")), "buffers": array(obj("buffer")),
        "bufferViews": array(obj("bufferView")), "cameras": array(obj("camera")), "images": array(obj("image")),
        "materials": array(obj("material")), "meshes": array(obj("mesh")), "nodes": array(obj("node")),
        "samplers": array(obj("sampler")), "scenes": array(obj("scene")), "skins": array(obj("skin")),
        "textures": array(obj("texture")),
    },
    "asset": {"version!": _version, "minVersion": _version, "copyright": string(), "generator": string()},
    "accessor": {
        "bufferView": ref("bufferViews"), "byteOffset": integer(), "componentType!": integer(), "count!": integer(1),
        "type!": string(), "normalized": boolean, "max": array(number()), "min": array(number()),
        "sparse": obj("sparse"), **_named,
    },
    "sparse": {"count!": integer(1), "indices!": obj("sparseIndices"), "values!": obj("sparseValues")},
    "sparseIndices": {"bufferView!": ref("bufferViews"), "byteOffset": integer(), "componentType!": integer()},
    "sparseValues": {"bufferView!": ref("bufferViews"), "byteOffset": integer()},
    "animation": {"channels!": array(obj("channel")), "samplers!": array(obj("animationSampler")), **_named},
    "channel": {"sampler!": integer(), "target!": obj("target")},
    "target": {"node": ref("nodes"), "path!": string()},
    "animationSampler": {"input!": ref("accessors"), "output!": ref("accessors"), "interpolation": string()},
    "buffer": {"uri": string(), "byteLength!": integer(1), **_named},
    "bufferView": {
        "buffer!": ref("buffers"), "byteOffset": integer(), "byteLength!": integer(1),
        "byteStride": integer(4, 252, 4), "target": integer(), **_named,
    },
    "camera": {
        "orthographic": obj("orthographic"), "perspective": obj("perspective"), "type!": string(), **_named,
    },
    "orthographic": {"xmag!": number(), "ymag!": number(), "zfar!": number(above=0), "znear!": number(0)},
    "perspective": {
        "aspectRatio": number(above=0), "yfov!": number(above=0), "zfar": number(above=0), "znear!": number(above=0),
    },
    "image": {"uri": string(), "mimeType": string(), "bufferView": ref("bufferViews"), **_named},
    "material": {
        "pbrMetallicRoughness": obj("pbr"), "normalTexture": _texture, "occlusionTexture": _texture,
        "emissiveTexture": _texture, "emissiveFactor": _colour, "alphaMode": string(), "alphaCutoff": number(0),
        "doubleSided": boolean, **_named,
    },
    "pbr": {
        "baseColorFactor": array(_factor, 4), "baseColorTexture": _texture, "metallicFactor": _factor,
        "roughnessFactor": _factor, "metallicRoughnessTexture": _texture,
    },
    "textureInfo": {"index!": ref("textures"), "texCoord": integer(), "scale": number(), "strength": _factor},
    "mesh": {"primitives!": array(obj("primitive")), "weights": array(number()), **_named},
    "primitive": {
        "attributes!": mapping(ref("accessors")), "indices": ref("accessors"), "material": ref("materials"),
        "mode": integer(), "targets": array(mapping(ref("accessors"))),
    },
    "node": {
        "camera": ref("cameras"), "children": array(ref("nodes"), unique=True), "skin": ref("skins"),
        "matrix": array(number(), 16), "mesh": ref("meshes"), "rotation": array(number(-1, 1), 4), "scale": _vec3,
        "translation": _vec3, "weights": array(number()), **_named,
    },
    "sampler": {"magFilter": integer(), "minFilter": integer(), "wrapS": integer(), "wrapT": integer(), **_named},
    "scene": {"nodes": array(ref("nodes"), unique=True), **_named},
    "skin": {
        "inverseBindMatrices": ref("accessors"), "skeleton": ref("nodes"),
        "joints!": array(ref("nodes"), unique=True), **_named,
    },
    "texture": {"sampler": ref("samplers"), "source": ref("images"), **_named},
    "lights": {"lights!": array(obj("light"))},
    "light": {
        "type!": string(), "color": _colour, "intensity": number(0), "range": number(above=0), "spot": obj("spot"),
        **_named,
    },
    "spot": {"innerConeAngle": number(0, math.pi / 2), "outerConeAngle": number(above=0, high=math.pi / 2)},
    "lit": {"light!": ref("extensions", "KHR_lights_punctual", "lights")},
    "anisotropy": {
        "anisotropyStrength": _factor, "anisotropyRotation": number(), "anisotropyTexture": _texture,
    },
    "clearcoat": {
        "clearcoatFactor": _factor, "clearcoatTexture": _texture, "clearcoatRoughnessFactor": _factor,
        "clearcoatRoughnessTexture": _texture, "clearcoatNormalTexture": _texture,
    },
    "dispersion": {"dispersion": number(0)},
    "emissive": {"emissiveStrength": number(0)},
    "ior": {"ior": number(1, zero=True)},
    "iridescence": {
        "iridescenceFactor": _factor, "iridescenceTexture": _texture, "iridescenceIor": number(1),
        "iridescenceThicknessMinimum": number(0), "iridescenceThicknessMaximum": number(0),
        "iridescenceThicknessTexture": _texture,
    },
    "glossiness": {
        "diffuseFactor": array(_factor, 4), "diffuseTexture": _texture, "specularFactor": _colour,
        "glossinessFactor": _factor, "specularGlossinessTexture": _texture,
    },
    "sheen": {
        "sheenColorFactor": _colour, "sheenColorTexture": _texture, "sheenRoughnessFactor": _factor,
        "sheenRoughnessTexture": _texture,
    },
    "specular": {
        "specularFactor": _factor, "specularTexture": _texture, "specularColorFactor": array(number(0), 3),
        "specularColorTexture": _texture,
    },
    "transmission": {"transmissionFactor": _factor, "transmissionTexture": _texture},
    "volume": {
        "thicknessFactor": number(0), "thicknessTexture": _texture, "attenuationDistance": number(above=0),
        "attenuationColor": _colour,
    },
    "variants": {"variants!": array(obj("variant"))},
    "variant": {"name!": string()},
    "mappings": {"mappings!": array(obj("mapping"))},
    "mapping": {
        "variants!": array(ref("extensions", "KHR_materials_variants", "variants"), unique=True),
        "material!": ref("materials"),
    },
    "pointer": {"pointer!": string(r"(/([^~/]|~[01])*)*\Z")},
    "transform": {
        "offset": array(number(), 2), "rotation": number(), "scale": array(number(), 2), "texCoord": integer(),
    },
    "visibility": {"visible": boolean},
    "webp": {"source": ref("images")},
}  # fmt: skip

# Where an extension's object may stand, and the shape it has there ("" is not looked at).
EXTENSIONS: dict[str, dict[str, str]] = {
    "KHR_lights_punctual": {"gltf": "lights", "node": "lit"},
    "KHR_materials_variants": {"gltf": "variants", "primitive": "mappings"},
    "KHR_texture_transform": {"textureInfo": "transform"},
    "KHR_animation_pointer": {"target": "pointer"},
    "KHR_node_visibility": {"node": "visibility"},
    "EXT_texture_webp": {"texture": "webp"},
    "KHR_mesh_quantization": {},
    "KHR_materials_unlit": {"material": ""},
    "KHR_materials_pbrSpecularGlossiness": {"material": "glossiness"},
    "KHR_materials_emissive_strength": {"material": "emissive"},
    **{
        f"KHR_materials_{name}": {"material": name}
        for name in (
            "anisotropy", "clearcoat", "dispersion", "ior", "iridescence", "sheen", "specular", "transmission",
            "volume",
        )
    },
}  # fmt: skip
