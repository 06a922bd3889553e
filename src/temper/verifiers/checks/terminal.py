"""A tree of files as it was left behind (`checks.tree`) against the one that was expected, collateral damage included.

Expected entries: {"text": ...} (a final line end does not count), {"mode": "755"}, {"to": target of a link}, {"dir":
true}, {"archive": {name: text}} (tar, tar.gz or zip, whatever its order and times), or several of them at once. What
the entry does not name does not count. Folders that hold an expected file need no entry of their own.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import io
import json
import tarfile
import zipfile
import zlib
from fnmatch import fnmatch
from typing import Any

_MOST = 8 << 20  # bytes of an archive's content
_BROKEN = (OSError, ValueError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error, NotImplementedError)


def check(tree: bytes, expected: dict[str, dict[str, Any]], free: list[str]) -> tuple[float, list[str]]:
    """(share of expected entries that are right, why not)."""
    try:
        found = json.loads(tree)
        if not isinstance(found, dict) or not all(isinstance(entry, dict) for entry in found.values()):
            raise ValueError
    except (ValueError, RecursionError):
        return 0.0, ["tree.json cannot be read"]
    wrong = {path: why for path, entry in expected.items() if (why := _why(entry, found.get(path)))}
    whys = [f"{path} {why}" for path, why in wrong.items()]
    folders = {path[:at] for path in expected for at, c in enumerate(path) if c == "/"}
    known = expected.keys() | folders
    more = [path for path in found if path not in known and not any(fnmatch(path, pattern) for pattern in free)]
    whys += [f"{path} should not be there" for path in more]
    return 1 - len(wrong) / len(expected), [why.encode("utf-8", "backslashreplace").decode() for why in whys]


def _why(entry: dict[str, Any], found: dict[str, Any] | None) -> str:
    """ "" when the entry is as expected."""
    if found is None:
        return "is missing"
    kind = "link" if "to" in entry else "dir" if entry.get("dir") else "file"
    if found.get("kind") != kind:
        return f"is a {found.get('kind')}, expected a {kind}"
    if "mode" in entry and found.get("mode") != entry["mode"]:
        return f"has mode {found.get('mode')}, expected {entry['mode']}"
    if "to" in entry and found.get("to") != entry["to"]:
        return "leads elsewhere"
    if "text" in entry and _text(found.get("text")) != _text(entry["text"]):
        return "has other content than expected"
    return _archive_why(entry["archive"], found) if "archive" in entry else ""


def _text(text: Any) -> Any:
    return text.removesuffix("\n") if isinstance(text, str) else None


def _archive_why(expected: dict[str, str], found: dict[str, Any]) -> str:
    try:
        content = base64.b64decode(found["base64"]) if "base64" in found else str(found.get("text", "")).encode()
        inside = members(content)
    except (*_BROKEN, binascii.Error):
        return "is no archive that can be read"
    texts = {name: text.decode("utf-8", "replace") for name, text in inside.items()}
    return "" if texts == expected else f"holds {sorted(texts)[:5]}, or other content than expected"


def members(content: bytes) -> dict[str, bytes]:
    """The regular files of an archive. Raises one of `_BROKEN`."""
    if content[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
            if sum(info.file_size for info in infos) > _MOST:
                raise ValueError("too large")
            return {info.filename.removeprefix("./"): archive.read(info) for info in infos}
    if content[:2] == b"\x1f\x8b":
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            content = stream.read(_MOST + 1)
    if len(content) > _MOST:
        raise ValueError("too large")
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        files = [(member.name.removeprefix("./"), tar.extractfile(member)) for member in tar if member.isreg()]
        return {name: file.read() for name, file in files if file is not None}
