"""Is a glTF 2.0 file (JSON or binary) valid? After the rules of the specification (Khronos).

`problems` reads the container (`checks.gltf_asset`) and asks in stages, each of which presumes that those before it
found nothing: the document's shape (`checks.gltf_schema`), how its bytes are laid out (here), what its parts mean
together (`checks.gltf_scene`), and the data that accessors give (`checks.gltf_values`). Images are looked at as far as
their headers.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from temper.verifiers.checks import gltf_scene, gltf_schema, gltf_values
from temper.verifiers.checks.gltf_asset import COLUMNS, COMPONENTS, WIDTHS, Asset, BrokenError, known, told

MOST = 20  # problems that are told
_IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"RIFF": "image/webp"}


def problems(name: str, content: bytes, files: Mapping[str, bytes]) -> list[str]:
    """What makes the file invalid, at most `MOST`; empty for a valid one. `files`: by the names that URIs give."""
    try:
        asset = Asset(name, content, files)
        for stage in ((_shape,), *_STAGES):
            found = [problem for check in stage for problem in itertools.islice(check(asset), MOST)]
            if found:
                return found[:MOST]
        return []
    except BrokenError as error:
        return [str(error)]
    except RecursionError:
        return ["nested too deep"]


def _shape(asset: Asset) -> Iterator[str]:
    return gltf_schema.problems(asset.document)


def _head(asset: Asset) -> Iterator[str]:
    head, document = asset.document["asset"], asset.document
    used, required = document.get("extensionsUsed", []), document.get("extensionsRequired", [])
    version, least = ([int(n) for n in head.get(key, "2.0").split(".")] for key in ("version", "minVersion"))
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
            "matrices have to be aligned to 4 bytes": kind in COLUMNS and offset % 4,
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
            "the image's header is damaged or cut short": data and found and gltf_values.cut(data, found),
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


_STAGES = (
    (_head, _buffers, _views, _accessors),
    (_images, gltf_scene.materials, gltf_scene.meshes, gltf_scene.cameras, gltf_scene.nodes, gltf_scene.skins, _uses),
    (
        gltf_scene.animations, gltf_values.animations, gltf_values.accessors, gltf_values.meshes, gltf_values.skins,
    ),
)  # fmt: skip
