"""The records of images: what people write, what a build pins, what a sandbox needs; reading and writing them."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from temper.core import config
from temper.core.errors import ConfigError, CorruptError, MissingError

FORMAT = 1  # part of every key: raised when the same step comes to mean something else


class Repository(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A git repository at one commit (40 hex digits), without its history, at `path` in the image."""

    url: str
    commit: str
    path: str = "/sandbox"


class ImageSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An environment. Local paths are relative to the file it was read from, paths inside to the working directory.

    base: "host" (this machine's /usr and Python), "image:HASH", "debootstrap:SUITE", or the path of a directory, a
    tarball, an OCI image directory or an OCI archive. apt: names, or name=version; unpacked, their scripts do not run.
    python: pip's requirement lines, with --hash where wanted; wheels only. files: path inside to local path.
    run: shell commands, run as the sandbox's user, who owns the image's files but not the host's.
    network: hosts that `run` may reach, as in `SandboxSpec.network`. env: for commands in the image's sandboxes.
    """

    base: str = "host"
    apt: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    repository: Repository | None = None
    run: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)


class Artifact(Struct, frozen=True):
    """One file that a package manager chose."""

    name: str
    version: str
    file: str
    sha256: str


class Pinned(Struct, frozen=True):
    """What was asked for, of which target, and the exact files that answer it."""

    asked: tuple[str, ...]
    target: str
    found: tuple[Artifact, ...]


class Lock(Struct, frozen=True, kw_only=True):
    """What a build chose; a later one takes the same as long as the same is asked for."""

    base: str = ""  # the key of the base's layers
    apt: Pinned | None = None
    python: Pinned | None = None
    image: str = ""


class Image(Struct, frozen=True, kw_only=True):
    """Layers (keys in the store, the lowest first) and the environment of commands. Over the host, or whole."""

    layers: tuple[str, ...] = ()
    over_host: bool = False
    env: dict[str, str] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        return digest(self)

    def stack(self, work: str = "") -> str:
        """As the helper has it (`native/layers.c`); `work`: where a writable root goes."""
        below = ["host"] if self.over_host else []
        return ":".join([*([f"+{work}"] if work else []), *reversed(self.layers), *below])


def digest(*parts: Any) -> str:
    """The key of plain data: 32 hex digits."""
    return hashlib.sha256(msgspec.json.encode([FORMAT, *parts], order="sorted")).hexdigest()[:32]


def sha256(path: Path) -> str:
    """Of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_spec(path: str | Path) -> ImageSpec:
    """Raises MissingError, ConfigError. Local paths become absolute."""
    if not Path(path).exists():
        raise MissingError(f"no description of an environment at {path}: expected a TOML file, see docs/sandboxes.md")
    spec = config.build(ImageSpec, config.load(path), str(path))
    above = Path(path).absolute().parent
    changed: dict[str, Any] = {"files": {inside: str(above / local) for inside, local in spec.files.items()}}
    if spec.base != "host" and not spec.base.startswith(("image:", "debootstrap:")):
        changed["base"] = str(above / spec.base)
    if spec.repository:
        if not re.fullmatch("[0-9a-f]{40}", spec.repository.commit):
            raise ConfigError(f"{path}: expected a commit of 40 hex digits, got {spec.repository.commit!r}")
        if (above / spec.repository.url).exists():
            changed["repository"] = replace(spec.repository, url=str(above / spec.repository.url))
    return replace(spec, **changed)


def read_lock(path: Path) -> Lock | None:
    """None where there is none. Raises CorruptError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Lock)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise CorruptError(f"{path} is no lock file ({error}): remove it, and the next build writes it anew") from None


def write_lock(path: Path, lock: Lock) -> None:
    write(path, msgspec.json.format(msgspec.json.encode(lock), indent=2) + b"\n")


def write(path: Path, content: bytes) -> None:
    """In one step, whoever else writes it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(content)
    fresh.replace(path)
