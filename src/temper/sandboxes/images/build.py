"""Builds images: one layer a step, its key the hash of the layer below and of the step, so that a step is done once.

The steps, in order: base, apt packages, Python requirements, files, repository, each command of `run`. Python's and the
commands' run in a sandbox whose writable root becomes the layer; the others are unpacked by this process. A layer
appears in the store whole or not at all, and builders of the same layer wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import platform
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from msgspec.structs import replace

from temper.core.errors import ConfigError, CorruptError
from temper.core.task import SandboxSpec
from temper.sandboxes import local
from temper.sandboxes.images import bases, packages, records
from temper.sandboxes.images.records import Artifact, Image, ImageSpec, Lock, Repository, digest
from temper.sandboxes.images.store import Store

SECONDS = 3600.0  # for one command
PYTHON = "/opt/env"  # the virtual environment with the requirements
USER = 1000  # owns a layer's files on the disk, where the builder may give files away
LIMITS = SandboxSpec(
    memory=4 << 30, disk=1 << 30, file_size=4 << 30, pids=2048, cpu_seconds=SECONDS, output=16 << 20
)  # fmt: skip
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # that may be links

Network = Literal["none"] | tuple[str, ...]


async def build_file(path: Path, store: Store, say: Callable[[str], None]) -> Image:
    """The image of a spec file; its lock file stands beside it (env.toml, env.lock) and keeps the image from `gc`."""
    spec = records.read_spec(path)
    lock_path = path.with_suffix(".lock")
    image, lock = await build(spec, store, records.read_lock(lock_path), path.absolute().parent, say)
    records.write_lock(lock_path, lock)
    store.add_root(lock_path)
    return image


async def build(
    spec: ImageSpec, store: Store, lock: Lock | None, beside: Path, say: Callable[[str], None]
) -> tuple[Image, Lock]:
    """The image, in the store, and what it was made of. `lock`: an earlier choice, kept where the same is asked for.

    `beside`: where requirements that are paths begin. `say` is told of each step. Raises ConfigError for a step that
    fails, with the end of its output.
    """
    sandboxes = local.Backend(local.Config(), store, build=True)
    try:
        with contextlib.ExitStack() as held:
            async with store.locked("store", shared=True):
                builder = Builder(spec, store, lock or Lock(), beside, say, sandboxes, held)
                await builder.base()
                await builder.apt()
                await builder.python()
                await builder.files()
                await builder.run()
                store.add_image(builder.image)
                return builder.image, replace(builder.lock, image=builder.image.hash)
    finally:
        await sandboxes.close()


@dataclass
class Builder:
    """The state between steps: the image so far, the key of all that went into it, the lock being written."""

    spec: ImageSpec
    store: Store
    before: Lock
    beside: Path
    say: Callable[[str], None]
    sandboxes: local.Backend
    held: contextlib.ExitStack
    image: Image = field(default_factory=Image)
    key: str = "base"
    lock: Lock = field(default_factory=Lock)

    # ---- steps ----

    async def base(self) -> None:
        name = self.spec.base
        if name == "host":
            self.image = replace(self.image, over_host=True)
            release = Path("/etc/os-release")
            host = (release.read_text() if release.exists() else "", platform.machine(), sys.version, sys.base_prefix)
            await self._step("host", host, _make_folders)
        elif name.startswith("image:"):
            self.image, file = self.store.hold(name.removeprefix("image:"))
            self.held.enter_context(file)
            self.key = digest(self.image)
        else:
            with bases.opened(name) as base:
                self.image = replace(self.image, env=base.env)
                for part in base.parts:
                    await self._step("base", part.digest, part.unpack)
            known = {path: self._find(path) for path in ("etc/passwd", "etc/group")}
            await self._step("user", (known, self._find("var/lib/dpkg/status")), _add_user, known)
        self.lock = replace(self.lock, base=self.key)
        if self.before.base not in ("", self.key):
            raise ConfigError(f"base {name} is not what the lock file was written for: remove that, to choose anew")

    async def apt(self) -> None:
        if not self.spec.apt:
            return
        root, status = None, ""
        if not self.image.over_host:
            root = Path(self.held.enter_context(tempfile.TemporaryDirectory(prefix="temper-apt-")))
            (root / ".tar").write_bytes(await self._said("tar -cf - -C / etc/apt var/lib/dpkg/status"))
            bases.unpack(root / ".tar", root)
            status = self._find("var/lib/dpkg/status")
        links = {name: str(at.readlink()) for name in _TOP if (at := self._at(name)) and at.is_symlink()}
        apt = packages.Apt(self.key, root)
        pinned = await asyncio.to_thread(packages.pin, apt, self.spec.apt, self.before.apt, self.store)
        self.lock = replace(self.lock, apt=pinned)
        files = [self.store.file(artifact) for artifact in pinned.found]
        await self._step("apt", pinned.found, packages.unpack_debs, files, links, status)

    async def python(self) -> None:
        if not self.spec.python:
            return
        probed = (await self._said(shlex.join(["python3", "-c", packages.PROBE]))).decode("ascii", "replace")
        pip = packages.Pip(probed, self.beside, self.spec.python)
        pinned = await asyncio.to_thread(packages.pin, pip, self.spec.python, self.before.python, self.store)
        self.lock = replace(self.lock, python=pinned)
        await self._step("python", pinned.found, self._install, pinned.found)
        path = self.image.env.get("PATH", self.sandboxes.path)
        env = {**self.image.env, "PATH": f"{PYTHON}/bin:{path.removeprefix(f'{PYTHON}/bin:')}", "VIRTUAL_ENV": PYTHON}
        self.image = replace(self.image, env=env)

    async def files(self) -> None:
        if self.spec.files:
            digests = {inside: bases.tree_digest(Path(source)) for inside, source in self.spec.files.items()}
            await self._step("files", digests, _copy_files, self.spec.files)
        if self.spec.repository:
            where = (self.spec.repository.commit, self.spec.repository.path)
            await self._step("repository", where, _check_out, self.spec.repository)

    async def run(self) -> None:
        self.image = replace(self.image, env={**self.image.env, **self.spec.env})
        network = self.spec.network or "none"
        for command in self.spec.run:
            await self._step("run", (command, network, self.spec.env), self._make, command, network)

    # ---- how a step becomes a layer ----

    async def _step(self, name: str, inputs: Any, make: Callable[..., Any], *given: Any) -> None:
        """`make` fills the layer: a function its directory, in a thread; a coroutine, by a sandbox, its `work`."""

        async def sealed(work: Path) -> None:
            if inspect.iscoroutinefunction(make):
                await make(work, *given)
            else:
                await asyncio.to_thread(make, work / "upper", *given)
            await asyncio.to_thread(_seal, work / "upper", bool(self.sandboxes.hello.privileged))

        self.key = digest(self.key, name, inputs)
        fresh = await self.store.layer(self.key, sealed)
        self.say(f"{self.key}  {name}{'' if fresh else ' (was there)'}")
        self.image = replace(self.image, layers=(*self.image.layers, self.key))

    async def _install(self, work: Path, found: tuple[Artifact, ...]) -> None:
        wheels = work / "wheels" / "wheels"  # a layer for this step only
        wheels.mkdir(parents=True)
        for artifact in found:
            os.link(self.store.file(artifact), wheels / artifact.file)
        pip = next(artifact.file for artifact in found if artifact.name == "pip")
        wanted = shlex.join(f"{artifact.name}=={artifact.version}" for artifact in found)
        script = (
            f"test -e {PYTHON}/bin/python || python3 -m venv --without-pip {PYTHON}\n"
            f"{PYTHON}/bin/python /wheels/{pip}/pip install --quiet --no-index --no-deps --no-cache-dir "
            f"--disable-pip-version-check --find-links /wheels {wanted}"
        )
        await self._make(work, script, "none", f"{work.name}/wheels")

    async def _make(self, work: Path, script: str, network: Network, *more: str) -> None:
        """What the script leaves behind is in the layer. `more`: layers to be seen by it."""
        if self.sandboxes.hello.privileged:
            for path in (work / "upper", work / "work"):
                os.chown(path, USER, USER)
        image = replace(self.image, layers=(*self.image.layers, *more))
        await self._said(script, replace(LIMITS, network=network), image, work.name, SECONDS)

    async def _said(
        self, script: str, spec: SandboxSpec = LIMITS, image: Image | None = None, work: str = "", seconds: float = 60.0
    ) -> bytes:
        """What the script says in a sandbox of the image so far. Raises ConfigError where it fails."""
        box = await self.sandboxes.start(spec, image or self.image, work)
        try:
            found = await box.exec(["sh", "-ec", script], seconds=seconds)
        finally:
            await box.close()
        if not found.ok:
            ended = f"{found.cause} {found.code} {found.evidence}\n{found.text[-2000:].strip()}"
            raise ConfigError(f"in the image, `{script}` ended: {ended}")
        return found.stdout

    def _at(self, path: str) -> Path | None:
        """Where on the disk a path of the image so far is."""
        layers = [self.store.layers.resolve() / key for key in reversed(self.image.layers)]
        roots = [*layers, Path("/")] if self.image.over_host else layers
        return next((root / path for root in roots if os.path.lexists(root / path)), None)

    def _find(self, path: str) -> str:
        """A text file of the image so far, "" where there is none, or a link on the way."""
        at = self._at(path)
        return at.read_text("utf-8", "replace") if at and at.is_file() and at.resolve() == at else ""


def _make_folders(upper: Path) -> None:
    for name in ("sandbox", "opt", "etc", "var", "srv", "home"):
        (upper / name).mkdir()


def _add_user(upper: Path, known: dict[str, str]) -> None:
    """The sandbox's user, where the base has none with its number, and its directory."""
    added = {"etc/passwd": f"user:x:{USER}:{USER}:user:/sandbox:/bin/sh", "etc/group": f"user:x:{USER}:"}
    (upper / "etc").mkdir()
    (upper / "sandbox").mkdir()
    for path, line in added.items():
        if f":{USER}:" not in known[path]:
            (upper / path).write_text("".join(f"{row}\n" for row in [*known[path].splitlines(), line]))


def _inside(upper: Path, path: str) -> Path:
    """Where a path in the image, relative to the working directory, is in its layer. Raises ConfigError."""
    parts = PurePosixPath("/sandbox", path).parts[1:]
    if ".." in parts:
        raise ConfigError(f"expected a path inside the image, got {path!r}")
    return upper.joinpath(*parts)


def _copy_files(upper: Path, files: dict[str, str]) -> None:
    for inside, source in files.items():
        bases.copy(Path(source), _inside(upper, inside))


def _check_out(upper: Path, repository: Repository) -> None:
    """One commit and nothing later, which could hold a task's answer; no trace of the builder in .git."""
    folder = _inside(upper, repository.path)
    folder.mkdir(parents=True)
    for words in (
        ["init", "--quiet", "--template="],
        ["fetch", "--quiet", "--depth", "1", "--no-tags", repository.url, repository.commit],
        ["checkout", "--quiet", "--detach", "FETCH_HEAD"],
    ):
        bases.output(["git", "-C", str(folder), *words], f"repository {repository.url}: git {words[0]} failed")
    if (folder / ".git/HEAD").read_text().strip() != repository.commit:
        raise CorruptError(f"repository {repository.url}: expected commit {repository.commit}, got another")
    (folder / ".git/FETCH_HEAD").unlink()
    shutil.rmtree(folder / ".git/logs", ignore_errors=True)


def _seal(upper: Path, privileged: bool) -> None:
    """One owner (as root, `USER`), no set-id bits, and of special files only overlayfs' whiteouts."""
    paths = [Path(top, name) for top, folders, names in os.walk(upper) for name in folders + names]
    for path in [upper, *paths]:
        found = path.lstat()
        kind = stat.S_IFMT(found.st_mode)
        if kind not in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK) and (kind != stat.S_IFCHR or found.st_rdev):
            path.unlink()
            continue
        if privileged and (found.st_uid, found.st_gid) != (USER, USER):
            os.lchown(path, USER, USER)
        if kind == stat.S_IFREG and found.st_mode & 0o6000:
            path.chmod(found.st_mode & 0o777)
