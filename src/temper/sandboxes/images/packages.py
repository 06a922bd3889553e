"""From names to exact files with hashes, and back: pip and apt, run by the builder on this machine.

`Pip` and `Apt` have the same verbs: `resolve` asks the package manager which files answer the requirements and
downloads them, `fetch` downloads exactly the files of a lock. Debian packages are unpacked; their scripts do not run.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from temper.core.errors import ConfigError, CorruptError, MissingError
from temper.sandboxes.images import bases
from temper.sandboxes.images.records import Artifact, Pinned
from temper.sandboxes.images.store import Store

PROBE = (
    "import platform, sys; "
    "print(*sys.version_info[:2], platform.python_implementation(), platform.machine(), *platform.libc_ver())"
)


def pin(packages: Pip | Apt, asked: tuple[str, ...], before: Pinned | None, store: Store) -> Pinned:
    """What the lock says, where the same was asked before, else a fresh choice; all files are in the store then."""
    with tempfile.TemporaryDirectory(prefix="work-", dir=store.layers) as folder:
        if before is None or (before.asked, before.target) != (asked, packages.target):
            packages.resolve(asked, Path(folder))
            return Pinned(asked, packages.target, _taken(packages, Path(folder), store))
        if not all(store.file(artifact).exists() for artifact in before.found):
            packages.fetch(before, Path(folder))
            other = set(before.found) - set(_taken(packages, Path(folder), store))
            if other:
                files = ", ".join(sorted(artifact.file for artifact in other))
                raise CorruptError(
                    f"what was downloaded differs from the lock: {files}; remove the lock to choose anew"
                )
        return before


def _taken(packages: Pip | Apt, folder: Path, store: Store) -> tuple[Artifact, ...]:
    found = []
    for path in sorted(folder.iterdir()):
        name, version = packages.named(path.name)
        found.append(Artifact(name, version, path.name, store.add_file(path)))
    return tuple(found)


class Pip:
    """Wheels for the Python that `PROBE` printed about; `beside`: where requirements that are paths begin."""

    def __init__(self, probed: str, beside: Path, asked: Sequence[str]) -> None:
        if importlib.util.find_spec("pip") is None:
            raise MissingError("Python requirements need pip beside Temper: python -m ensurepip")
        self.python = probed.strip()
        self.beside = beside
        self.local = {path.name: path for path in (beside / line for line in asked if line.endswith(".whl"))}
        self.target = " ".join([self.python, *(bases.tree_digest(path) for path in self.local.values())])

    def resolve(self, asked: Sequence[str], into: Path) -> None:
        self._download(into, asked)
        if not any(into.glob("pip-*.whl")):  # what installs them, and a virtual environment's usual inhabitant
            self._download(into, ["pip"])

    def fetch(self, pinned: Pinned, into: Path) -> None:
        for path in self.local.values():
            shutil.copy(path, into)
        others = [artifact for artifact in pinned.found if artifact.file not in self.local]
        lines = [f"{artifact.name}=={artifact.version} --hash=sha256:{artifact.sha256}" for artifact in others]
        self._download(into, lines, "--no-deps", "--require-hashes")

    def named(self, file: str) -> tuple[str, str]:
        name, version = file.split("-")[:2]
        return name.lower().replace("_", "-"), version

    def _download(self, into: Path, lines: Sequence[str], *options: str) -> None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary", ":all:", "--dest", str(into)]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
            requirements.write("\n".join(lines))
            requirements.flush()
            command += [*_platform(self.python), *options, "-r", requirements.name]
            bases.output(command, f"pip found no wheels for {', '.join(lines)} on {self.python}", self.beside)


def _platform(python: str) -> list[str]:
    """pip's words for another Python than this one, as `PROBE` printed it. Raises ConfigError."""
    if python == bases.output([sys.executable, "-c", PROBE], "this Python does not run").strip():
        return []
    told = re.fullmatch(r"(\d+) (\d+) CPython (\w+) glibc 2\.(\d{1,2})", python)
    if told is None:
        raise ConfigError(f"python: expected CPython with glibc in the base, found {python!r}")
    major, minor, machine, newest = told.groups()
    platforms = [f"manylinux_2_{n}_{machine}" for n in range(int(newest), 16, -1)] + [f"manylinux2014_{machine}"]
    words = ["--implementation", "cp", "--python-version", f"{major}.{minor}"]
    for abi in (f"cp{major}{minor}", "abi3", "none"):
        words += ["--abi", abi]
    return words + [word for platform in platforms for word in ("--platform", platform)]


class Apt:
    """Debian packages that a system lacks. `root`: its etc/apt and var/lib/dpkg/status; None: this machine itself."""

    def __init__(self, target: str, root: Path | None) -> None:
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise MissingError("apt packages need apt-get and dpkg-deb on this machine")
        self.target = target
        self.root = root

    def resolve(self, asked: Sequence[str], into: Path) -> None:
        self._update()
        printed = self._apt(["install", "--print-uris", "-qq", "-y", "--no-install-recommends", *asked], into)
        files = re.findall(r"^'[^']+' (\S+\.deb) ", printed, re.M)
        if files:
            self._apt(["download", *("=".join(self.named(file)) for file in files)], into)

    def fetch(self, pinned: Pinned, into: Path) -> None:
        self._update()
        self._apt(["download", *(f"{artifact.name}={artifact.version}" for artifact in pinned.found)], into)

    def named(self, file: str) -> tuple[str, str]:
        name, version, machine = file.removesuffix(".deb").split("_")
        return name if machine == "all" else f"{name}:{machine}", unquote(version)

    def _update(self) -> None:
        """The lists of another system than this one, which keeps its own."""
        if self.root is not None:
            for name in ("var/lib/apt/lists/partial/x", "var/cache/apt/archives/partial/x"):
                bases.inside(self.root, name).parent.mkdir(parents=True, exist_ok=True)
            self._apt(["update", "-qq"], self.root)

    def _apt(self, words: Sequence[str], folder: Path) -> str:
        options = ["-o", "APT::Sandbox::User=root"]
        if self.root is not None:
            options += ["-o", f"Dir={self.root}", "-o", f"Dir::State::status={self.root}/var/lib/dpkg/status"]
        failed = f"apt-get {' '.join(words)} failed (`apt-get update` first?)"
        return bases.output(["apt-get", *options, *words], failed, folder)


def unpack_debs(into: Path, files: Sequence[Path], links: Mapping[str, str], status: str) -> None:
    """Packages into a layer. `links`: where the base has links at the top. `status`: dpkg's, "" where there is none."""
    with tempfile.TemporaryDirectory(prefix="temper-deb-") as folder:
        for file in files:
            broken = f"{file.name} does not unpack"
            argv = ["sh", "-c", 'dpkg-deb --fsys-tarfile "$0" > tar && dpkg-deb --field "$0"', str(file)]
            control = bases.output(argv, broken, Path(folder), CorruptError)
            bases.unpack(Path(folder, "tar"), into, moved=links)
            status = status and f"{status.rstrip()}\n\n{control.rstrip()}\nStatus: install ok installed\n"
    if status:
        path = bases.inside(into, "var/lib/dpkg/status")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(status)
