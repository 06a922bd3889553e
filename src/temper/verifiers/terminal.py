"""Work in a shell is right when it left the expected files behind, and nothing else, collateral damage included.

Reference: {"files": {path: entry}, "free": [patterns], "scripts": {path: [run]}}. `files` is the whole expected tree,
`free` names paths that may be there in any form. The environment delivers `tree.json`, which a program of ours lists
(`checks.tree`). A script of `scripts` is run as `sh PATH` in fresh boxes, over the task's own files and the delivered
ones, and has to print what the run says (`verifiers.output`), which never enters the box.

Expected entries: {"text": ...} (a final line end does not count), {"mode": "755"}, {"to": target of a link}, {"dir":
true}, {"archive": {name: text}} (tar, tar.gz or zip, whatever its order and times), or several of them at once. What
the entry does not name does not count. Folders that hold an expected file need no entry of their own.

Components: files, scripts.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from temper.verifiers import boxes, output, written
from temper.verifiers.grading import Given, Judgement, Plugin

Config = written.Config  # `seconds`: of the comparison, and of each run of a script
_MOST = 8 << 20  # bytes of an archive's content


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    files: Annotated[dict[str, dict[str, Any]], Meta(min_length=1)]
    free: list[str] = []
    scripts: dict[str, list[output.Run]] = {}
    commands: list[str] = []  # of the solution
    written: dict[str, str] = {}  # scripts of the solution by path


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    tree, rules = given.file("tree.json"), (reference.files, reference.free)
    share, whys = await given.pool.judge(f"{__name__}:check", (tree, *rules), (b"{}", *rules), bool, settings.seconds)
    components = {"files": share}
    if reference.scripts and not whys:
        left = {path: json.loads(tree)[path].get("text") for path in reference.files}
        texts = {path: text.encode("utf-8", "replace") for path, text in left.items() if isinstance(text, str)}
        running = output.Config(seconds=settings.seconds, command=("sh",))
        spec = boxes.with_files(given.task.sandbox, texts)
        runs = [(path, run) for path, several in reference.scripts.items() for run in several]
        found = await asyncio.gather(*(output.why_not(given.sandboxes, running, spec, *run) for run in runs))
        components["scripts"] = found.count("") / len(found)
        whys = [why for why in found if why]
    return Judgement.of(whys, components)


def check(tree: bytes, expected: dict[str, dict[str, Any]], free: list[str]) -> tuple[float, list[str]]:
    """Runs in a worker: share of expected entries that are right, why not."""
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
    return 1 - len(wrong) / len(expected), whys


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
    if "text" in entry and _bare(found.get("text")) != _bare(entry["text"]):
        return "has other content than expected"
    return _archive_why(entry["archive"], found) if "archive" in entry else ""


def _bare(text: Any) -> Any:
    return text.removesuffix("\n") if isinstance(text, str) else None


def _archive_why(expected: dict[str, str], found: dict[str, Any]) -> str:
    try:
        content = base64.b64decode(found["base64"]) if "base64" in found else str(found.get("text", "")).encode()
        inside = members(content)
    except MemoryError:
        raise
    except Exception:  # whatever zipfile, tarfile and their decompressors make of it
        return "is no archive that can be read"
    texts = {name: text.decode("utf-8", "replace") for name, text in inside.items()}
    return "" if texts == expected else f"holds {sorted(texts)[:5]}, or other content than expected"


def members(content: bytes) -> dict[str, bytes]:
    """The regular files of an archive. Raises what the libraries raise for anything else."""
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


def listing() -> str:
    """The program that lists the working directory as `tree.json`."""
    return boxes.program("temper.verifiers.checks.tree")


def tree_of(entries: Mapping[str, Mapping[str, Any]]) -> bytes:
    """A `tree.json` as the listing would give it, of files by path."""
    return msgspec.json.encode({path: {"kind": "file", "mode": "644", **entry} for path, entry in entries.items()})


create = Plugin(__name__, Config, Reference, judge)
