"""The store of images: `$TEMPER_CACHE/images` (~/.cache/temper/images), shared by all processes of a user.

    layers/KEY          a finished layer; its content never changes, and a box sees it read-only
    layers/work-KEY-*   one being built; it becomes layers/KEY in one rename, or nothing
    images/HASH.json    an `Image`; running backends hold a shared lock on it; its time is that of its last use
    files/SHA256/NAME   downloads of package managers
    roots/*             where lock files are: what they name is kept as long as they are there
    locks/*             one a layer being built; `store` is held by builds (shared) and by `gc` (alone)

Locks are the kernel's (flock), so they end with their process.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
from msgspec import Struct

from temper.core.errors import CorruptError, DeadlineError, MissingError, nearest
from temper.sandboxes.images.records import Artifact, Image, Lock, digest, read_lock, sha256, write

BUILD_SECONDS = 3600.0  # how long to wait for another process's build of the same layer
DAY = 86400.0


class Kept(Struct, frozen=True):
    """An image of the store. `roots`: the lock files that name it. `used`: seconds since the epoch."""

    path: Path
    image: Image
    used: float
    roots: tuple[Path, ...]


class Store:
    def __init__(self, root: Path | None = None) -> None:
        cache = Path(os.environ.get("TEMPER_CACHE") or Path.home() / ".cache" / "temper")
        self.root = (root or cache / "images").absolute()
        self.layers = self.root / "layers"
        for name in ("layers", "images", "files", "roots", "locks"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)  # the owner of the files in a layer is another user of this host, or nobody

    # ---- using ----

    def hold(self, name: str) -> tuple[Image, IO[bytes]]:
        """The image, and an open file that keeps it from `gc` until it is closed. Raises MissingError."""
        path = self.root / "images" / f"{name}.json"
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as undo:
            file = undo.enter_context(path.open("rb"))
            if _flocked(file, fcntl.LOCK_SH) and os.fstat(file.fileno()).st_nlink:  # else it is being collected
                os.utime(path)
                undo.pop_all()
                return msgspec.json.decode(file.read(), type=Image), file
        known = [path.stem for path in self.root.glob("images/*.json")]
        raise MissingError(f"no image {name} here: `temper sandbox build` it; {nearest(name, known)}")

    def images(self) -> list[Kept]:
        """All images, the last used first."""
        found = []
        for path in self.root.glob("images/*.json"):
            roots = tuple(where for where, lock in self._locks() if lock.image == path.stem)
            found.append(Kept(path, msgspec.json.decode(path.read_bytes(), type=Image), path.stat().st_mtime, roots))
        return sorted(found, key=lambda kept: -kept.used)

    # ---- building ----

    @contextlib.asynccontextmanager
    async def locked(self, name: str, *, shared: bool = False, seconds: float = BUILD_SECONDS) -> AsyncGenerator[None]:
        """Raises DeadlineError."""
        until = time.monotonic() + seconds
        with (self.root / "locks" / name).open("w") as file:
            while not _flocked(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
                if time.monotonic() > until:
                    raise DeadlineError(f"waited {seconds:.0f} s for another process, at {file.name}")
                await asyncio.sleep(0.05)
            yield

    async def layer(self, key: str, make: Callable[[Path], Awaitable[None]]) -> bool:
        """Makes a layer unless it is there: `make` is given a directory and fills its `upper`. False: it was there."""
        final = self.layers / key
        async with self.locked(key):
            if final.exists():
                return False
            for stale in self.layers.glob(f"work-{key}-*"):
                remove_tree(stale)
            work = Path(tempfile.mkdtemp(prefix=f"work-{key}-", dir=self.layers))
            try:
                work.chmod(0o755)
                (work / "upper").mkdir()
                (work / "work").mkdir()
                await make(work)
                (work / "upper").rename(final)
            finally:
                remove_tree(work)
        return True

    def add_image(self, image: Image) -> None:
        write(self.root / "images" / f"{image.hash}.json", msgspec.json.encode(image))

    def add_root(self, lock: Path) -> None:
        """A lock file, which keeps the image that it names as long as it is there."""
        write(self.root / "roots" / digest(str(lock.absolute())), os.fsencode(lock.absolute()))

    def add_file(self, path: Path) -> str:
        """Takes a file over; gives its hash."""
        name = sha256(path)
        (self.root / "files" / name).mkdir(exist_ok=True)
        path.replace(self.root / "files" / name / path.name)
        return name

    def file(self, artifact: Artifact) -> Path:
        """Where that file is, or would be."""
        return self.root / "files" / artifact.sha256 / artifact.file

    # ---- collecting ----

    async def gc(self, days: float = 14.0, dry: bool = False) -> list[Path]:
        """Removes what no lock file names, no backend uses, and nobody has used or made for so many days; says what.

        Raises DeadlineError while a build goes on.
        """
        since = time.time() - days * DAY
        async with self.locked("store", seconds=10.0):
            with contextlib.ExitStack() as claims:
                gone = list(self._unused(since, claims))
                for path in () if dry else [*gone, *(p for p in self.root.glob("locks/*") if p.name != "store")]:
                    self._discard(path)
        return gone

    def _unused(self, since: float, claims: contextlib.ExitStack) -> Iterator[Path]:
        layers: set[str] = set()
        for kept in self.images():
            wanted = kept.used >= since or kept.roots
            if not wanted and _flocked(claims.enter_context(kept.path.open("rb")), fcntl.LOCK_EX):
                yield kept.path  # nobody uses it, and nobody can begin to as long as `claims` is open
            else:
                layers |= set(kept.image.layers)
        for path in self.layers.iterdir():
            if path.name.startswith("work-") or (path.name not in layers and path.stat().st_ctime < since):
                yield path
        pinned = {a.sha256 for _, lock in self._locks() for part in (lock.apt, lock.python) if part for a in part.found}
        for path in self.root.glob("files/*"):
            if path.name not in pinned and path.stat().st_mtime < since:
                yield path

    def _discard(self, path: Path) -> None:
        """Out of sight in one step, so that nobody ever finds half of it."""
        if path.is_file():
            path.unlink()
            return
        doomed = self.layers / f"work-gone-{path.name}-{os.getpid()}"
        path.rename(doomed)
        remove_tree(doomed)

    def _locks(self) -> Iterator[tuple[Path, Lock]]:
        for root in self.root.glob("roots/*"):
            path = Path(os.fsdecode(root.read_bytes()))
            with contextlib.suppress(CorruptError):
                if lock := read_lock(path):
                    yield path, lock


def remove_tree(path: Path) -> None:
    """Also where directories are closed to their owner, as those are that overlayfs works in."""
    for top, names, _ in os.walk(path):
        for below in (Path(top, name) for name in names):
            if not below.is_symlink():
                below.chmod(0o700)
    shutil.rmtree(path)


def size(path: Path) -> int:
    """Bytes on the disk of all files below."""
    paths = (Path(top, name) for top, _, names in os.walk(path) for name in names)
    return sum(found.lstat().st_blocks for found in ([path] if path.is_file() else paths)) * 512


def _flocked(file: IO[Any], how: int) -> bool:
    """Whether the lock could be had at once."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
