"""Where an image's first layers come from: a directory, a tarball, an OCI image, debootstrap.

A directory and a tarball are one layer, an OCI image as many as it has, its whiteouts in overlayfs' form. Owners,
device nodes, sockets and extended attributes are left out. Archives are not trusted: nothing is written or linked
through a name that leads out. OCI: https://github.com/opencontainers/image-spec, version 1.1.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from temper.core.errors import ConfigError, CorruptError, MissingError, RefusedError, TemperError
from temper.sandboxes.images.records import digest, sha256

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_ORDINARY = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK)
_NOWHERE: Mapping[str, str] = MappingProxyType({})
_WHITEOUT, _OPAQUE, _OPAQUE_ATTRIBUTE = ".wh.", ".wh..wh..opq", "user.overlay.opaque"


class Part(Struct, frozen=True):
    """One layer: the digest of what it is made from, and what fills an empty directory with it."""

    digest: str
    unpack: Callable[[Path], None]


class Base(Struct, frozen=True):
    parts: tuple[Part, ...]
    env: dict[str, str]


@contextlib.contextmanager
def opened(name: str) -> Generator[Base]:
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
        yield Base((Part(sha256(path), lambda into: unpack(path, into)),), {})
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
        return sha256(path)
    found: list[Any] = []
    for top, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(folders + names):
            at = Path(top, name)
            mode = at.lstat().st_mode
            what = str(at.readlink()) if stat.S_ISLNK(mode) else sha256(at) if stat.S_ISREG(mode) else ""
            found.append((str(at.relative_to(path)), mode, what))
    return digest(found)


# ---- archives ----


def unpack(archive: Path, into: Path, whiteouts: bool = False, moved: Mapping[str, str] = _NOWHERE) -> None:
    """A tar archive into a directory. `whiteouts`: names that begin with .wh. remove what lower layers have. `moved`:
    directories at the top that are others in truth, as /bin is /usr/bin."""
    removed: list[Path] = []
    with _tar(archive) as tar:
        for member in tar:
            target = inside(into, member.name, moved)
            if whiteouts and target.name.startswith(_WHITEOUT):
                if target.name.removeprefix(_WHITEOUT) in ("", ".", ".."):
                    raise CorruptError(f"the archive removes {member.name!r}, which is no name")
                removed.append(target)
            elif target != into and not (member.issym() and member.name.strip("./") in moved):
                _extract(tar, member, target, inside(into, member.linkname, moved) if member.islnk() else None)
    for path in sorted(removed, key=lambda path: path.name != _OPAQUE):
        folder, hidden = path.parent, path.with_name(path.name.removeprefix(_WHITEOUT))
        folder.mkdir(parents=True, exist_ok=True)
        if path.name == _OPAQUE:
            os.setxattr(folder, _OPAQUE_ATTRIBUTE, b"y")
        elif hidden.is_dir() and not hidden.is_symlink():  # this layer's own, which shows nothing of those below
            os.setxattr(hidden, _OPAQUE_ATTRIBUTE, b"y")
        elif not os.path.lexists(hidden) and _OPAQUE_ATTRIBUTE not in os.listxattr(folder):
            os.mknod(hidden, stat.S_IFCHR)  # in an opaque directory, overlayfs would list it


def inside(into: Path, name: str, moved: Mapping[str, str] = _NOWHERE) -> Path:
    """Where a name goes. Raises CorruptError where it leads out, through .. or a link."""
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", ".")]
    if parts and parts[0] in moved:
        return inside(into, "/".join([moved[parts[0]], *parts[1:]]))
    above = [into.joinpath(*parts[:n]) for n in range(1, len(parts))]
    if ".." in parts or any(path.is_symlink() for path in above):
        raise CorruptError(f"{name!r} leads out of its own directory")
    return into.joinpath(*parts)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, source: Path | None) -> None:
    """`source`: of a hard link."""
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
    elif source is not None:
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
def _tar(path: Path) -> Generator[tarfile.TarFile]:
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
        index = json.loads((root / "index.json").read_bytes())
        manifest = json.loads(_blob(root, _manifest(root, index)).read_bytes())
        env = json.loads(_blob(root, manifest["config"]["digest"]).read_bytes()).get("config", {}).get("Env") or ()
        parts = [_layer(root, layer) for layer in manifest["layers"]]
        return Base(tuple(parts), dict(line.split("=", 1) for line in env))
    except (KeyError, ValueError, TypeError, AttributeError, OSError) as error:
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
            return _manifest(root, json.loads(_blob(root, entry["digest"]).read_bytes()))
        offered.append(entry.get("platform", {}).get("architecture", ARCHITECTURE))
        if offered[-1] == ARCHITECTURE:
            return entry["digest"]
    raise RefusedError(f"the image is for {', '.join(offered) or 'nothing'}; this machine is {ARCHITECTURE}")


def _blob(root: Path, name: str) -> Path:
    """Raises CorruptError where the content is not what the name says."""
    path = root / "blobs" / name.replace(":", "/", 1)
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", name) or not path.is_file() or f"sha256:{sha256(path)}" != name:
        raise CorruptError(f"{root} has no blob {name}, or not with that content")
    return path


# ---- debootstrap ----


def _debootstrap(suite: str) -> Base:
    """Debian's or Ubuntu's own minimal system. It is what the archive has today: the lock remembers its packages."""
    if not re.fullmatch(r"[a-z]+", suite):
        raise ConfigError(f"expected debootstrap: and a suite such as bookworm, got {suite!r}")
    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        raise MissingError("base debootstrap:... needs root and the command debootstrap (apt-get install debootstrap)")

    def run(into: Path) -> None:
        output(["debootstrap", "--variant=minbase", suite, str(into)], f"debootstrap {suite} failed")

    return Base((Part(f"debootstrap:{suite}:{ARCHITECTURE}", run),), {})


def output(
    command: Sequence[str], failed: str, folder: Path | None = None, error: type[TemperError] = ConfigError
) -> str:
    """What a program of this machine says. Raises `error` where it fails, with the end of that."""
    quiet = {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", "PIP_NO_INPUT": "1", "GIT_TERMINAL_PROMPT": "0"}
    environment = {**os.environ, **quiet, "GIT_LFS_SKIP_SMUDGE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise error(f"{failed}: {done.stdout[-500:]}{done.stderr[-1500:]}".strip())
    return done.stdout
