"""Writing to a disk that can be full: whole files at once, and errors that say which disk and what to do."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Generator
from pathlib import Path

from temper.core.errors import BackendError, TemperError

_NOTHING = 16 << 10  # bytes: what may be left on a full disk
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)
_BROKEN = (errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM)


@contextlib.contextmanager
def disk_errors(path: Path, needed: int = 0) -> Generator[None]:
    """Turn errors about writing `needed` bytes to `path` into BackendError; others pass unchanged.

    Libraries hide the system's number: safetensors tells it in Rust's words, numpy not at all, so that any error counts
    as a full disk when the disk is found to be full.
    """
    try:
        yield
    except Exception as error:
        told = re.search(r"\(os error (\d+)\)", str(error))
        code = int(told[1]) if told else getattr(error, "errno", None)
        if code in _BROKEN:
            raise BackendError(f"{path} cannot be written: {error}; check the disk and its permissions") from error
        if code in _PLACE and isinstance(error, OSError):
            raise BackendError(f"{path} cannot be created: {error}; name a place in a folder that can be") from error
        disk = _mount(path)
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        if code not in _FULL and (free > _NOTHING or isinstance(error, TemperError)):
            raise
        need = f"{needed:,} bytes are needed for {path}" if needed else f"writing {path} needs more"
        raise BackendError(
            f"the disk at {disk} takes no more ({error}): {need}, {free:,} bytes are free. "
            "What was recorded before is safe: free space there (older runs, checkpoints), then resume the run"
        ) from error


def write_file(path: Path, content: bytes) -> None:
    """Replace `path` so that a crash leaves either the old content or the new, never half of it."""
    temporary = path.with_name(f".{path.name}.new")
    with disk_errors(path, len(content)):
        try:
            temporary.write_bytes(content)
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def sync(path: Path) -> None:
    """Wait until the disk has a file's content, or a folder's list of names."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _mount(path: Path) -> Path:
    folder = path.parent.resolve()
    return next(p for p in (folder, *folder.parents) if p.is_mount())
