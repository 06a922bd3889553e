"""A glTF 2.0 asset that can be read: its container, its document, and the data that accessors give.

External files come from `files` alone. Everything is bounded by the size of what was delivered: a count is believed
only when the bytes for it are there. Whether the asset is valid, `checks.gltf` says.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

import numpy as np

from temper.verifiers.checks.forms import constant

_MOST_ZEROS = 1 << 20  # elements of an accessor without data that are looked at
_JSON, _BIN = 0x4E4F534A, 0x004E4942
COMPONENTS = {5120: "<i1", 5121: "<u1", 5122: "<i2", 5123: "<u2", 5125: "<u4", 5126: "<f4"}
_SHAPES = {  # columns and rows
    "SCALAR": (1, 1), "VEC2": (1, 2), "VEC3": (1, 3), "VEC4": (1, 4), "MAT2": (2, 2), "MAT3": (3, 3), "MAT4": (4, 4),
}  # fmt: skip
WIDTHS = {kind: columns * rows for kind, (columns, rows) in _SHAPES.items()}

Format = tuple[int, bool]  # component type, normalized


class BrokenError(Exception):
    """The file cannot be read any further."""


class Asset:
    """Raises BrokenError where the container or the JSON cannot be read.

    Everything but the document itself presumes that the document has the right shape (`checks.gltf_schema`).
    """

    def __init__(self, name: str, content: bytes, files: Mapping[str, bytes]) -> None:
        self.binary: bytes | None = None
        self.glb = name.lower().endswith(".glb") or content[:4] == b"glTF"
        self.files = files
        text = self._container(content) if self.glb else content
        try:
            self.document: Any = json.loads(text.decode("utf-8"), parse_float=_number, parse_constant=constant)
        except (ValueError, RecursionError) as error:
            raise BrokenError(f"no valid JSON: {str(error)[:200]}") from None
        self._data: dict[int, bytes | None] = {}

    def all(self, kind: str) -> list[dict[str, Any]]:
        return self.document.get(kind, [])

    def each(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """A collection's elements, each with its place."""
        return ((f"{kind}/{n}", part) for n, part in enumerate(self.all(kind)))

    def primitives(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for where, mesh in self.each("meshes"):
            yield from ((f"{where}/primitives/{n}", part) for n, part in enumerate(mesh["primitives"]))

    def _container(self, content: bytes) -> bytes:
        """The JSON chunk; the binary one is kept."""
        if len(content) < 12:
            raise BrokenError("GLB: the header is cut short")
        magic, version, length = struct.unpack_from("<4sII", content)
        if magic != b"glTF" or version != 2:
            raise BrokenError(f"GLB: expected magic glTF and version 2, found {magic!r} and {version}")
        if length > len(content) or length < 20:
            raise BrokenError(f"GLB: the header says {length} bytes, the file has {len(content)}")
        chunks: list[tuple[int, bytes]] = []
        at = 12
        while at < length:
            if length - at < 8:
                raise BrokenError("GLB: a chunk's header is cut short")
            size, kind = struct.unpack_from("<II", content, at)
            if size % 4 or size > length - at - 8:
                raise BrokenError(f"GLB: a chunk of {size} bytes is not aligned to 4 bytes, or does not fit")
            if kind in (_JSON, _BIN) and any(kind == other for other, _ in chunks):
                raise BrokenError("GLB: a chunk's type occurs twice")
            chunks.append((kind, content[at + 8 : at + 8 + size]))
            at += 8 + size
        if chunks[0][0] != _JSON or not chunks[0][1]:
            raise BrokenError("GLB: the first chunk is not JSON, or empty")
        if any(kind == _BIN for kind, _ in chunks[2:]):
            raise BrokenError("GLB: the binary chunk is not the second one")
        self.binary = chunks[1][1] if chunks[1:] and chunks[1][0] == _BIN else None
        return chunks[0][1]

    def resource(self, uri: str) -> tuple[str, bytes | None]:
        """(media type, content); no content where it lies elsewhere. Raises BrokenError."""
        if uri.startswith("data:"):
            head, comma, text = uri[5:].partition(",")
            kind, *parameters = head.split(";")
            if not comma or not all(parameters):
                raise BrokenError("a data URI out of form")
            if "base64" not in parameters:
                return kind, unquote_to_bytes(text)
            try:
                return kind, base64.b64decode(unquote(text), validate=True)
            except (binascii.Error, ValueError) as error:
                raise BrokenError(f"a data URI that cannot be decoded: {error}") from None
        if not uri or re.search(r"[\t\n\r\\^`{}|<>\"\x00-\x1f]", uri) or re.match(r"[^/?#a-zA-Z.]*:", uri):
            raise BrokenError(f"an invalid URI: {uri[:60]!r}")
        if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", uri):
            return "", None
        if unquote(uri) not in self.files:
            raise BrokenError(f"{unquote(uri)[:60]!r} is not there")
        return "", self.files[unquote(uri)]

    def data(self, buffer: int) -> bytes | None:
        """A buffer's bytes; None where they lie elsewhere. Raises BrokenError."""
        if buffer not in self._data:
            uri = self.all("buffers")[buffer].get("uri")
            in_chunk = self.binary if buffer == 0 and self.glb else None
            self._data[buffer] = in_chunk if uri is None else self.resource(uri)[1]
        return self._data[buffer]

    def view(self, index: int) -> bytes | None:
        view = self.all("bufferViews")[index]
        data = self.data(view["buffer"])
        start = view.get("byteOffset", 0)
        return None if data is None else data[start : start + view["byteLength"]]

    def elements(self, index: int) -> np.ndarray | None:
        """Values of an accessor (count, width) in float64; None where the data lie elsewhere or would be all zero."""
        accessor = self.all("accessors")[index]
        if not known(accessor):
            return None
        count, kind = accessor["count"], COMPONENTS[accessor["componentType"]]
        sparse = accessor.get("sparse")
        if "bufferView" in accessor:
            data = self.view(accessor["bufferView"])
            if data is None:
                return None
            base = _gather(data, accessor, self.stride(accessor), self.size(accessor))
        elif sparse and count <= _MOST_ZEROS:
            base = np.zeros((count, WIDTHS[accessor["type"]]))
        else:
            return None
        if sparse:
            at, values = (self.view(sparse[part]["bufferView"]) for part in ("indices", "values"))
            if at is None or values is None:
                return None
            where, change = sparse["indices"], sparse["values"]
            rows = np.frombuffer(at, COMPONENTS[where["componentType"]], sparse["count"], where.get("byteOffset", 0))
            rows = rows.astype(np.int64)
            if (np.diff(rows) <= 0).any() or rows[-1] >= count:
                raise BrokenError("sparse indices do not increase, or are too large")
            new = np.frombuffer(values, kind, sparse["count"] * base.shape[1], change.get("byteOffset", 0))
            base[rows] = new.reshape(-1, base.shape[1])
        return base

    def stride(self, accessor: dict[str, Any]) -> int:
        view = self.all("bufferViews")[accessor["bufferView"]] if "bufferView" in accessor else {}
        columns, _, spaced = _layout(accessor)
        return view.get("byteStride") or columns * spaced

    def size(self, accessor: dict[str, Any]) -> int:
        """Bytes of an element from its first component to the last."""
        columns, size, spaced = _layout(accessor)
        return spaced * (columns - 1) + size

    def format(self, index: int) -> tuple[str, Format]:
        accessor = self.all("accessors")[index]
        return accessor["type"], (accessor["componentType"], accessor.get("normalized", False))

    def parents(self) -> dict[int, int]:
        return {child: n for n, node in enumerate(self.all("nodes")) for child in node.get("children", [])}


def told(where: str, whys: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong, of what would be wrong where the values hold."""
    return (f"{where}: {why}" for why, holds in whys.items() if holds)


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def known(accessor: dict[str, Any]) -> bool:
    """Whether its type is one of the specification's; extensions may bring others."""
    return accessor["type"] in WIDTHS and accessor["componentType"] in COMPONENTS


def _layout(accessor: dict[str, Any]) -> tuple[int, int, int]:
    """How many columns, the bytes of one, and the bytes from one to the next: those of matrices begin at fours."""
    columns, rows = _SHAPES[accessor["type"]]
    size = rows * int(COMPONENTS[accessor["componentType"]][-1])
    return columns, size, size + -size % 4 if columns > 1 else size


def _gather(data: bytes, accessor: dict[str, Any], stride: int, size: int) -> np.ndarray:
    """The elements of an accessor that fits its view, (count, width)."""
    kind = np.dtype(COMPONENTS[accessor["componentType"]])
    count, offset, (columns, column, spaced) = accessor["count"], accessor.get("byteOffset", 0), _layout(accessor)
    shape = (count, columns, column // kind.itemsize)
    strides = (stride, spaced, kind.itemsize)
    raw = np.frombuffer(data, np.uint8)
    if raw.size < offset + (count - 1) * stride + size:
        raise BrokenError("its bytes are not there")
    found = np.ndarray(shape, kind, raw, offset, strides)
    return found.astype(np.float64).reshape(count, -1)


def scale(format: Format) -> float:
    """What the largest value of a normalized format stands for 1."""
    component, normalized = format
    return float(np.iinfo(COMPONENTS[component]).max) if normalized else 1.0
