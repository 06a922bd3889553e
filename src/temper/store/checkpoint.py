"""Checkpoints: folders that are either whole and hashed, or not there.

A checkpoint is called KIND-NUMBER ("rl-000120"). It is written in a hidden folder, gets a manifest with the sha256 of
each file, and is then renamed, so that a crash leaves the older ones untouched. What is in it is its writer's business.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
from collections.abc import Generator
from pathlib import Path

import msgspec
from msgspec import Struct

from temper.core.errors import ConfigError, CorruptError
from temper.store.disk import disk_errors, sync, write_file

MANIFEST = "manifest.json"
_NAME = re.compile(r"([A-Za-z][\w-]*)-(\d+)")


class Latest(Struct, frozen=True):
    """The newest checkpoint that verifies, if any, and why newer ones do not."""

    folder: Path | None
    skipped: tuple[str, ...] = ()


@contextlib.contextmanager
def write(root: Path, name: str, keep: int) -> Generator[Path]:
    """Gives the folder to write into, which becomes `root/name` when the block ends well; `keep` of its kind stay.

    Raises BackendError when the disk is full; the unfinished checkpoint is then gone and the older ones are not.
    """
    kind, _ = _parse(name)
    folder, final = root / f".new-{name}", root / name
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with disk_errors(final):
            folder.mkdir(parents=True)
            yield folder
            _seal(folder)
            if final.exists():
                final.rename(root / f".old-{name}")
            folder.rename(final)
            sync(root)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(root / f".old-{name}", ignore_errors=True)
    for old in _newest_first(root, kind)[keep:]:
        _remove(old)


def verify(folder: Path) -> None:
    """Read every file back. Raises CorruptError that names the first file which is not as it was written."""
    try:
        wanted = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError) as error:
        raise CorruptError(f"{folder / MANIFEST} cannot be read: {error}; use an older checkpoint") from None
    found = {str(p.relative_to(folder)): p for p in _files(folder)}
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            raise CorruptError(f"{folder / name} is missing; use an older checkpoint")
        if name not in wanted:
            raise CorruptError(f"{found[name]} does not belong to the checkpoint: it is not in {MANIFEST}")
        if _sha256(found[name]) != wanted[name]:
            raise CorruptError(
                f"{found[name]} is damaged: its sha256 is not that of {MANIFEST}; use an older checkpoint"
            )


def latest(root: Path, kind: str) -> Latest:
    """The newest checkpoint of `kind` that reads back as it was written."""
    skipped: list[str] = []
    for folder in _newest_first(root, kind):
        try:
            verify(folder)
        except CorruptError as error:
            skipped.append(str(error))
        else:
            return Latest(folder, tuple(skipped))
    return Latest(None, tuple(skipped))


def clean(root: Path) -> None:
    """Remove what a crash left behind; a checkpoint that was about to be replaced comes back."""
    for left in root.glob(".*"):
        state, _, name = left.name[1:].partition("-")
        if state == "old" and not (root / name).exists():
            left.rename(root / name)
        else:
            shutil.rmtree(left, ignore_errors=True)


def _parse(name: str) -> tuple[str, int]:
    match = _NAME.fullmatch(name)
    if not match:
        raise ConfigError(f"a checkpoint is called KIND-NUMBER, like 'rl-000120', got {name!r}")
    return match[1], int(match[2])


def _newest_first(root: Path, kind: str) -> list[Path]:
    found = [(int(m[2]), p) for p in root.glob("*") if (m := _NAME.fullmatch(p.name)) and m[1] == kind]
    return [p for _, p in sorted(found, reverse=True)]


def _remove(folder: Path) -> None:
    """Hidden first, so that a crash in between leaves no half checkpoint under its name."""
    hidden = folder.with_name(f".gone-{folder.name}")
    folder.rename(hidden)
    shutil.rmtree(hidden)


def _seal(folder: Path) -> None:
    hashes: dict[str, str] = {}
    for path in _files(folder):
        hashes[str(path.relative_to(folder))] = _sha256(path)
        sync(path)
    write_file(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(hashes), indent=2))


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and p != folder / MANIFEST)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
