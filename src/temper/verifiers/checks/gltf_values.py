"""The data of a glTF asset whose parts fit together: are the numbers what the specification (Khronos) asks of them?

One function a kind of part; each gives what is wrong as "where: what". Data that lie elsewhere are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from temper.verifiers.checks.gltf_asset import Asset, BrokenError, known, scale, told

_CLOSE = 5e-4  # what a length may differ from 1 by


def accessors(asset: Asset) -> Iterator[str]:
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


def animations(asset: Asset) -> Iterator[str]:
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


def meshes(asset: Asset) -> Iterator[str]:
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


def skins(asset: Asset) -> Iterator[str]:
    for where, skin in asset.each("skins"):
        values = asset.elements(skin["inverseBindMatrices"]) if "inverseBindMatrices" in skin else None
        wrong = values is not None and (values[:, 3::4] != [0, 0, 0, 1]).any()
        yield from told(where, {"the last row of an inverse bind matrix is not 0 0 0 1": wrong})


def cut(image: bytes, kind: str) -> bool:
    """Whether an image's header is damaged."""
    if kind == "image/png":
        return len(image) < 33 or image[12:16] != b"IHDR"
    if kind == "image/jpeg":
        return len(image) < 4 or int.from_bytes(image[4:6]) < 2
    return len(image) < 16 or image[8:12] != b"WEBP"
