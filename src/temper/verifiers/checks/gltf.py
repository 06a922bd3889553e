"""Is a glTF 2.0 file (JSON or binary) valid? After the rules of the specification (Khronos).

`problems` reads the container (`checks.gltf_asset`) and asks in stages, each of which presumes that those before it
found nothing: the document's shape (`checks.gltf_schema`), how its bytes are laid out (here), what its parts mean
together (`checks.gltf_scene`), and the data that accessors give (here). Data that lie elsewhere are not looked at,
images as far as their headers.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from temper.verifiers.checks import gltf_scene, gltf_schema
from temper.verifiers.checks.gltf_asset import COMPONENTS, WIDTHS, Asset, BrokenError, known, scale, told

MOST = 20  # problems that are told
_CLOSE = 5e-4  # what a length may differ from 1 by
_IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}


def problems(name: str, content: bytes, files: Mapping[str, bytes]) -> list[str]:
    """What makes the file invalid, at most `MOST`; empty for a valid one. `files`: by the names that URIs give."""
    try:
        asset = Asset(name, content, files)
        for stage in _STAGES:
            found = [problem for check in stage for problem in itertools.islice(check(asset), MOST)]
            if found:
                return found[:MOST]
        return []
    except BrokenError as error:
        return [str(error)]
    except RecursionError:
        return ["nested too deep"]


def _head(asset: Asset) -> Iterator[str]:
    head, document = asset.document["asset"], asset.document
    used, required = document.get("extensionsUsed", []), document.get("extensionsRequired", [])
    version, least = ([int(n[:9]) for n in head.get(key, "2.0").split(".")] for key in ("version", "minVersion"))
    loose = "KHR_mesh_quantization" in used and "KHR_mesh_quantization" not in required
    yield from told("asset", {
        f"version {head['version'][:20]} cannot be read": version[0] != 2 or least > version,
        "KHR_mesh_quantization has to be required": loose,
        **{f"{name[:60]} is required and not in extensionsUsed": name not in used for name in required},
    })  # fmt: skip
    for n, light in enumerate(document.get("extensions", {}).get("KHR_lights_punctual", {}).get("lights", [])):
        spot = light.get("spot", {})
        inner, outer = spot.get("innerConeAngle", 0), spot.get("outerConeAngle", math.pi / 4)
        yield from told(f"lights/{n}", {
            "a spot light without its spot": light["type"] == "spot" and "spot" not in light,
            "the outer cone is not wider than the inner one": outer <= inner,
        })  # fmt: skip


def _buffers(asset: Asset) -> Iterator[str]:
    for where, buffer in asset.each("buffers"):
        uri, n = buffer.get("uri", ""), int(where.partition("/")[2])
        try:
            data = asset.data(n)
        except BrokenError as error:
            yield f"{where}: {error}"
            continue
        media = re.split("[;,]", uri[5:])[0]
        plain = media in ("application/octet-stream", "application/gltf-buffer")
        size = buffer["byteLength"] if data is None else len(data)
        yield from told(where, {
            f"media type {media[:40]}": uri.startswith("data:") and not plain,
            f"{size} bytes are there, {buffer['byteLength']} were said": size < buffer["byteLength"],
            "no binary chunk": data is None and not uri and asset.glb and n == 0,
        })  # fmt: skip


def _views(asset: Asset) -> Iterator[str]:
    for where, view in asset.each("bufferViews"):
        stride, end = view.get("byteStride"), view.get("byteOffset", 0) + view["byteLength"]
        yield from told(where, {
            "does not fit its buffer": end > asset.all("buffers")[view["buffer"]]["byteLength"],
            "byteStride is too large": stride is not None and stride > view["byteLength"],
            "byteStride is for vertices": stride is not None and view.get("target") == 34963,
        })  # fmt: skip


def _accessors(asset: Asset) -> Iterator[str]:
    for where, accessor in asset.each("accessors"):
        if not known(accessor):
            continue
        kind, offset, count = accessor["type"], accessor.get("byteOffset", 0), accessor["count"]
        size, sparse = int(COMPONENTS[accessor["componentType"]][-1]), accessor.get("sparse")
        stride, element = asset.stride(accessor), asset.size(accessor)
        lengths = {key: len(accessor.get(key, [0] * WIDTHS[kind])) for key in ("min", "max")}
        yield from told(where, {
            "cannot be normalized": accessor.get("normalized") and accessor["componentType"] in (5125, 5126),
            "matrices have to be aligned to 4 bytes": kind.startswith("MAT") and offset % 4,
            f"min and max have to have {WIDTHS[kind]} components": set(lengths.values()) != {WIDTHS[kind]},
            "byteOffset without bufferView": "byteOffset" in accessor and "bufferView" not in accessor,
            f"byteStride {stride} is less than an element's {element} bytes": stride < element,
            "sparse has more elements than the accessor": sparse and sparse["count"] > count,
        })  # fmt: skip
        if "bufferView" in accessor:
            yield from _fits(asset, where, accessor, (count - 1) * stride + element, size)
        if sparse:
            index = int(COMPONENTS.get(sparse["indices"]["componentType"], "u1")[-1])
            for part, width, unit in (("indices", index, index), ("values", size * WIDTHS[kind], size)):
                strided = "byteStride" in asset.all("bufferViews")[sparse[part]["bufferView"]]
                yield from told(where, {f"sparse {part} in a bufferView with byteStride": strided})
                yield from _fits(asset, f"{where}/sparse", sparse[part], width * sparse["count"], unit)


def _fits(asset: Asset, where: str, part: dict[str, Any], length: int, size: int) -> Iterator[str]:
    index, offset = part["bufferView"], part.get("byteOffset", 0)
    view, end = asset.all("bufferViews")[index], offset + length
    yield from told(where, {
        f"its offset is not aligned to {size} bytes": offset % size or (offset + view.get("byteOffset", 0)) % size,
        f"needs bytes {offset}..{end} of bufferViews/{index} ({view['byteLength']})": end > view["byteLength"],
    })  # fmt: skip


def _images(asset: Asset) -> Iterator[str]:
    webp = "EXT_texture_webp" in asset.document.get("extensionsUsed", [])
    kinds: list[str] = []
    for where, image in asset.each("images"):
        kinds.append(image.get("mimeType", ""))
        if ("uri" in image) == ("bufferView" in image):
            yield f"{where}: expected either uri or bufferView"
            continue
        try:
            media, data = asset.resource(image["uri"]) if "uri" in image else ("", asset.view(image["bufferView"]))
        except BrokenError as error:
            yield f"{where}: {error}"
            continue
        declared = image.get("mimeType", media)
        found = next((kind for magic, kind in _IMAGES.items() if data and data.startswith(magic)), "")
        kinds[-1] = found or declared
        yield from told(where, {
            "bufferView without mimeType": "bufferView" in image and "mimeType" not in image,
            f"media type {media[:40]}": media and media not in _IMAGES.values(),
            f"declared {declared[:40]}, found {found}": found and declared and found != declared,
            "WebP needs EXT_texture_webp": found == "image/webp" and not webp,
            "the image's header is damaged or cut short": data and found and _cut(data, found),
        })  # fmt: skip
    for where, texture in asset.each("textures"):
        other = texture.get("extensions", {}).get("EXT_texture_webp", {}).get("source")
        plain, kind = kinds[texture["source"]] if "source" in texture else "", kinds[other] if other is not None else ""
        yield from told(where, {
            "WebP belongs into EXT_texture_webp": plain == "image/webp",
            f"EXT_texture_webp with {kind}": kind not in ("image/webp", ""),
        })  # fmt: skip


def _uses(asset: Asset) -> Iterator[str]:
    """A buffer view serves one purpose; one with several vertex attributes has a stride."""
    accessors = asset.all("accessors")
    used = [("matrices", skin["inverseBindMatrices"]) for skin in asset.all("skins") if "inverseBindMatrices" in skin]
    for _, primitive in asset.primitives():
        used += [("indices", primitive["indices"])] if "indices" in primitive else []
        for attributes in (primitive["attributes"], *primitive.get("targets", [])):
            used += [("vertices", index) for index in attributes.values()]
    for sampler in (sampler for animation in asset.all("animations") for sampler in animation["samplers"]):
        used += [("animation", sampler[key]) for key in ("input", "output")]
    uses: dict[int, set[str]] = {n: set() for n in range(len(asset.all("bufferViews")))}
    vertices: dict[int, set[int]] = {n: set() for n in uses}
    for use, index in used:
        if (view := accessors[index].get("bufferView")) is not None:
            uses[view].add(use)
            vertices[view].update([index] if use == "vertices" else [])
    for image in asset.all("images"):
        if "bufferView" in image:
            uses[image["bufferView"]].add("image")
    for n, (where, view) in enumerate(asset.each("bufferViews")):
        every = uses[n] | {34962: {"vertices"}, 34963: {"indices"}}.get(view.get("target"), set())
        yield from told(where, {
            f"used for {' and '.join(sorted(every))}": len(every) > 1,
            "byteStride is for vertices": "byteStride" in view and uses[n] - {"vertices"},
            "several attributes, and no byteStride": len(vertices[n]) > 1 and "byteStride" not in view,
        })  # fmt: skip


def _accessor_values(asset: Asset) -> Iterator[str]:
    for n, (where, accessor) in enumerate(asset.each("accessors")):
        try:
            values = asset.elements(n) if known(accessor) else None
        except BrokenError as error:
            yield f"{where}: {error}"
            continue
        if values is None:
            continue
        cast = np.float32 if accessor["componentType"] == 5126 else np.float64
        finite = np.isfinite(values).all()
        found = {"min": values.min(0), "max": values.max(0)}
        off = [k for k, bound in found.items() if (np.array(accessor.get(k, bound), float).astype(cast) != bound).any()]
        yield from told(where, {
            "a value is not finite": not finite,
            f"{', '.join(off)} is not that of its values": finite and off,
        })  # fmt: skip


def _animation_values(asset: Asset) -> Iterator[str]:
    for n, animation in enumerate(asset.all("animations")):
        samplers = animation["samplers"]
        for m, sampler in enumerate(samplers):
            values = asset.elements(sampler["input"])
            wrong = values is not None and ((values < 0).any() or (np.diff(values[:, 0]) <= 0).any())
            yield from told(f"animations/{n}/samplers/{m}", {"input is negative, or does not increase": wrong})
        for m, channel in enumerate(animation["channels"]):
            if channel["target"]["path"] == "rotation" and channel["sampler"] < len(samplers):
                sampler = samplers[channel["sampler"]]
                (kind, format), values = asset.format(sampler["output"]), asset.elements(sampler["output"])
                if values is not None and kind == "VEC4" and "node" in channel["target"]:
                    shown = values[1::3] if sampler.get("interpolation") == "CUBICSPLINE" else values
                    off = abs(np.linalg.norm(shown / scale(format), axis=1) - 1)
                    turned = (off > _CLOSE + 0.01 * (format != (5126, False))).any()
                    yield from told(f"animations/{n}/channels/{m}", {"rotations are not of unit length": turned})


def _mesh_values(asset: Asset) -> Iterator[str]:
    skins, nodes = asset.all("skins"), asset.all("nodes")
    for where, primitive in asset.primitives():
        mesh = int(where.split("/")[1])
        joints = (len(skins[node["skin"]]["joints"]) for node in nodes if node.get("mesh") == mesh and "skin" in node)
        yield from _vertices(asset, where, primitive, min(joints, default=math.inf))


def _vertices(asset: Asset, where: str, primitive: dict[str, Any], joints: float) -> Iterator[str]:
    given = primitive["attributes"]
    count = asset.all("accessors")[next(iter(given.values()))]["count"]
    index = primitive.get("indices")
    if index is not None and (values := asset.elements(index)) is not None:
        restart = {5121: 0xFF, 5123: 0xFFFF, 5125: 0xFFFFFFFF}[asset.all("accessors")[index]["componentType"]]
        beyond = values.max() >= min(count, restart)
        yield from told(where, {f"index {values.max():.0f} of {count} vertices": beyond})
    quantized = "KHR_mesh_quantization" in asset.document.get("extensionsUsed", [])
    found: dict[str, list[np.ndarray]] = {}
    for name, at in given.items():
        if (values := asset.elements(at)) is None:
            continue
        base, values = name.partition("_")[0], values / scale(asset.format(at)[1])
        found.setdefault(base, []).append(values)
        directed = base in ("NORMAL", "TANGENT") and not quantized
        off = abs(np.linalg.norm(values[:, :3], axis=1) - 1)
        yield from told(where, {
            f"{name} is not of unit length": directed and (off > _CLOSE).any(),
            "the sign of a tangent is not 1 or -1": directed and base == "TANGENT" and (abs(values[:, 3:]) != 1).any(),
            f"{name} is not within 0..1": base == "COLOR" and ((values < 0) | (values > 1)).any(),
            f"joint {values.max():.0f} of {joints}": base == "JOINTS" and values.max() >= joints,
            "a weight is negative": base == "WEIGHTS" and (values < 0).any(),
        })  # fmt: skip
    weights, used = found.get("WEIGHTS", []), found.get("JOINTS", [])
    if weights and len(weights) == len(used):
        total = np.concatenate(weights, 1)
        at = np.where(total > 0, np.concatenate(used, 1), -1 - np.arange(total.shape[1]))
        yield from told(where, {
            "weights do not sum to 1": (abs(total.sum(1) - 1) > 2e-3 + 0.004 * len(weights)).any(),
            "a vertex uses a joint twice": (np.diff(np.sort(at, 1), axis=1) == 0).any(),
        })  # fmt: skip


def _skin_values(asset: Asset) -> Iterator[str]:
    for where, skin in asset.each("skins"):
        values = asset.elements(skin["inverseBindMatrices"]) if "inverseBindMatrices" in skin else None
        wrong = values is not None and (values[:, 3::4] != [0, 0, 0, 1]).any()
        yield from told(where, {"the last row of an inverse bind matrix is not 0 0 0 1": wrong})


def _cut(image: bytes, kind: str) -> bool:
    """Whether an image's header is damaged."""
    if kind == "image/png":
        return len(image) < 33 or image[12:16] != b"IHDR"
    if kind == "image/jpeg":
        return len(image) < 4 or int.from_bytes(image[4:6]) < 2
    return len(image) < 16 or image[8:12] != b"WEBP"


_STAGES = (
    (gltf_schema.problems,),
    (_head, _buffers, _views, _accessors),
    (_images, gltf_scene.materials, gltf_scene.meshes, gltf_scene.cameras, gltf_scene.nodes, gltf_scene.skins, _uses),
    (gltf_scene.animations, _animation_values, _accessor_values, _mesh_values, _skin_values),
)
