"""Where an image's first layers come from: a directory, a tarball, an OCI image, debootstrap.

A directory and a tarball are one layer, an OCI image as many as it has, its whiteouts in overlayfs' form. Owners,
device nodes, sockets and extended attributes are left out. Archives are not trusted: nothing is written or linked
through a name that leads out. OCI: https://github.com/opencontainers/image-spec, version 1.1.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.errors import ConfigError, CorruptError, MissingError, RefusedError
from temper.sandboxes.images.records import digest

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_ORDINARY = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_WHITEOUT, _OPAQUE, _OPAQUE_ATTRIBUTE = ".wh.", ".wh..wh..opq", "user.overlay.opaque"


class Part(Struct, frozen=True):
    """One layer: the digest of what it is made from, and what fills an empty directory with it."""

    digest: str
    unpack: Callable[[Path], None]


class Base(Struct, frozen=True):
    parts: tuple[Part, ...]
    env: dict[str, str]


@contextlib.contextmanager
def opened(name: str) -> Iterator[Base]:
    """The base of that name, neither "host" nor "image:...". Raises MissingError, CorruptError, RefusedError."""
    path = Path(name)
    if name.startswith("debootstrap:"):
        yield _debootstrap(name.removeprefix("debootstrap:"))
    elif not path.exists():
        raise MissingError(f"no base at {path}: expected host, image:HASH, debootstrap:SUITE or the path of one")
    elif path.is_dir():
        if (path / "oci-layout").exists():
            yield _oci(path)
        else:
            yield Base((Part(tree_digest(path), lambda into: copy(path, into)),), {})
    elif not _is_oci_archive(path):
        yield Base((Part(_sha256(path), lambda into: unpack(path, into)),), {})
    else:
        with tempfile.TemporaryDirectory(prefix="temper-oci-") as folder:
            unpack(path, Path(folder))
            yield _oci(Path(folder))


def copy(source: Path, to: Path) -> None:
    """A file, or a directory's regular files, directories and links. Raises ConfigError."""

    def special(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if stat.S_IFMT(Path(folder, name).lstat().st_mode) not in _ORDINARY]

    if to.resolve().is_relative_to(source.resolve()):
        raise ConfigError(f"{source} holds the store of images itself, and cannot be a part of one")
    to.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, to, symlinks=True, ignore=special, dirs_exist_ok=True)
    else:
        shutil.copy2(source, to)


def tree_digest(path: Path) -> str:
    """Of a file, or of a directory's names, modes and contents. Raises MissingError."""
    if not path.exists():
        raise MissingError(f"there is nothing at {path}")
    if path.is_file():
        return _sha256(path)
    found: list[Any] = []
    for top, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(folders + names):
            at = Path(top, name)
            mode = at.lstat().st_mode
            what = str(at.readlink()) if stat.S_ISLNK(mode) else _sha256(at) if stat.S_ISREG(mode) else ""
            found.append((str(at.relative_to(path)), mode, what))
    return digest(found)


# ---- archives ----


def unpack(archive: Path, into: Path, whiteouts: bool = False) -> None:
    """A tar archive into a directory. `whiteouts`: names that begin with .wh. remove what lower layers have."""
    removed: list[Path] = []
    with _tar(archive) as tar:
        for member in tar:
            target = _target(into, member.name)
            if whiteouts and target.name.startswith(_WHITEOUT):
                removed.append(target)
            elif target != into:
                _extract(tar, member, target, into)
    for path in sorted(removed, key=lambda path: path.name != _OPAQUE):
        folder, hidden = path.parent, path.with_name(path.name.removeprefix(_WHITEOUT))
        folder.mkdir(parents=True, exist_ok=True)
        if path.name == _OPAQUE:
            os.setxattr(folder, _OPAQUE_ATTRIBUTE, b"y")
        elif hidden.is_dir() and not hidden.is_symlink():  # this layer's own, which shows nothing of those below
            os.setxattr(hidden, _OPAQUE_ATTRIBUTE, b"y")
        elif not os.path.lexists(hidden) and _OPAQUE_ATTRIBUTE not in os.listxattr(folder):
            os.mknod(hidden, stat.S_IFCHR)  # in an opaque directory, overlayfs would list it


def _target(into: Path, name: str) -> Path:
    """Where a member goes. Raises CorruptError where its name leads out, through .. or a link."""
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", ".")]
    above = [into.joinpath(*parts[:n]) for n in range(1, len(parts))]
    if ".." in parts or any(path.is_symlink() for path in above):
        raise CorruptError(f"the archive has {name!r}, which leads out of its own directory")
    return into.joinpath(*parts)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, into: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.isdir():
        if not target.is_dir() or target.is_symlink():
            target.unlink(missing_ok=True)
            target.mkdir()
        target.chmod(member.mode & 0o777 | 0o700)
        return
    target.unlink(missing_ok=True)
    if member.issym():
        target.symlink_to(member.linkname)
    elif member.islnk():
        source = _target(into, member.linkname)
        if not os.path.lexists(source):
            raise CorruptError(f"the archive links {member.name!r} to {member.linkname!r}, which is not in it")
        os.link(source, target, follow_symlinks=False)
    elif member.isreg():
        content = tar.extractfile(member)
        assert content is not None
        with target.open("xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        target.chmod(member.mode & 0o777)
        os.utime(target, (member.mtime, member.mtime))


@contextlib.contextmanager
def _tar(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(path, "r|*") as tar:
            yield tar
    except (tarfile.TarError, EOFError, OSError) as error:
        raise CorruptError(f"{path} does not unpack as a tar archive (plain, gzip, bzip2 or xz): {error}") from error


def _is_oci_archive(path: Path) -> bool:
    with _tar(path) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if parts[:1] == ("oci-layout",):
                return True
            if parts and parts[0] not in ("blobs", "index.json", "manifest.json", "repositories"):
                return False
    raise CorruptError(f"{path} has a docker-archive's files only: save it as an OCI archive (--format oci-archive)")


# ---- OCI ----


def _oci(root: Path) -> Base:
    try:
        index = _json((root / "index.json").read_bytes())
        manifest = _json(_blob(root, _manifest(root, index)).read_bytes())
        env = _json(_blob(root, manifest["config"]["digest"]).read_bytes()).get("config", {}).get("Env") or ()
        parts = [_layer(root, layer) for layer in manifest["layers"]]
        return Base(tuple(parts), dict(line.split("=", 1) for line in env))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CorruptError(f"{root} is no OCI image as the specification has it: {error!r}") from error


def _layer(root: Path, layer: dict[str, Any]) -> Part:
    if not layer["mediaType"].endswith((".tar", ".tar+gzip", ".tar.gzip")):
        raise CorruptError(f"{root} has a layer of type {layer['mediaType']}: expected a tar, plain or gzip")
    return Part(layer["digest"], lambda into: unpack(_blob(root, layer["digest"]), into, whiteouts=True))


def _manifest(root: Path, index: dict[str, Any]) -> str:
    """The digest of the manifest for this machine's architecture."""
    offered = []
    for entry in index["manifests"]:
        if "index" in entry["mediaType"] or "list" in entry["mediaType"]:
            return _manifest(root, _json(_blob(root, entry["digest"]).read_bytes()))
        offered.append(entry.get("platform", {}).get("architecture", ARCHITECTURE))
        if offered[-1] == ARCHITECTURE:
            return entry["digest"]
    raise RefusedError(f"the image is for {', '.join(offered) or 'nothing'}; this machine is {ARCHITECTURE}")


def _blob(root: Path, name: str) -> Path:
    """Raises CorruptError where the content is not what the name says."""
    path = root / "blobs" / name.replace(":", "/", 1)
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", name) or not path.is_file() or f"sha256:{_sha256(path)}" != name:
        raise CorruptError(f"{root} has no blob {name}, or not with that content")
    return path


def _json(content: bytes) -> dict[str, Any]:
    return msgspec.json.decode(content, type=dict[str, Any])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---- debootstrap ----


def _debootstrap(suite: str) -> Base:
    """Debian's or Ubuntu's own minimal system. It is what the archive has today: the lock remembers its packages."""
    if not re.fullmatch(r"[a-z]+", suite):
        raise ConfigError(f"expected debootstrap: and a suite such as bookworm, got {suite!r}")
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise MissingError("base debootstrap:... needs root and the command debootstrap (apt-get install debootstrap)")

    def run(into: Path) -> None:
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", suite, str(into)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ConfigError(f"debootstrap {suite} failed: {done.stdout[-500:]}{done.stderr[-500:]}")

    return Base((Part(f"debootstrap:{suite}:{ARCHITECTURE}", run),), {})
