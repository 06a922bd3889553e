"""Harbor task directories (task.toml up to schema 1.4, with its older keys), one or a folder of them.

The instruction becomes the user message, files of `environment/` those of the sandbox, and `tests/` and `solution/` the
private reference {"tests": {path: bytes}, "solution": {path: bytes}, "seconds": limit of tests/test.sh, and the
environment variables "env" of the tests and "solution_env"}.
`limits.seconds` is the agent's; turns and tokens, which Harbor does not limit, are the configuration's.

Nothing is built or run: what an image would hold (packages, modes of files, other paths than the working directory) is
not there. Every such difference and every key that has no counterpart is in `loss`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from temper.core.config import Positive
from temper.core.errors import ConfigError, MissingError
from temper.core.task import Limits, Message, Provenance, SandboxSpec, Task
from temper.importers import record, unread

_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}  # of old sizes, in MiB
_Mebibytes = Annotated[int, Meta(ge=0, le=2**33)]
_CONTAINER_FILES = re.compile(r"Dockerfile.*|docker-compose.*\.ya?ml|\.dockerignore")


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """domain: that will give the tasks their world. licence: of the tasks. limits: where a task sets none."""

    domain: str = "imported"
    licence: str = "unknown"
    limits: Limits = Limits()


def create(config: Config | None = None) -> Harbor:
    return Harbor(config or Config())


class _Package(Struct):
    name: str = ""
    description: str = ""  # for people, like the next two
    keywords: list[str] = []
    authors: list[dict[str, Any]] = []


class _Agent(Struct):
    timeout_sec: Positive | None = None


class _Verifier(Struct):
    timeout_sec: Positive = 600.0
    env: dict[str, str] = {}
    environment_mode: Literal["shared", "separate"] = "shared"


class _Environment(Struct):
    network_mode: Literal["public", "no-network", "allowlist"] = "public"
    cpus: Positive = 1.0
    memory_mb: _Mebibytes | None = None
    storage_mb: _Mebibytes | None = None
    build_timeout_sec: float = 600.0  # nothing is built
    workdir: str | None = None
    env: dict[str, str] = {}


class _Solution(Struct):
    env: dict[str, str] = {}


class _Toml(Struct):
    schema_version: Literal["1.0", "1.1", "1.2", "1.3", "1.4"] = "1.4"
    task: _Package = field(default_factory=_Package)
    agent: _Agent = field(default_factory=_Agent)
    verifier: _Verifier = field(default_factory=_Verifier)
    environment: _Environment = field(default_factory=_Environment)
    solution: _Solution = field(default_factory=_Solution)
    artifacts: list[str | dict[str, Any]] = []
    metadata: dict[str, Any] = {}  # free, for people


class Harbor:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._lost: list[str] = []

    def tasks(self, source: str) -> Iterator[Task]:
        """In the order of folder names. Raises MissingError, and ConfigError with the file."""
        root = Path(source)
        folders = [root] if (root / "task.toml").exists() else sorted(p.parent for p in root.glob("*/task.toml"))
        if not folders:
            raise MissingError(f"expected {root} to be a Harbor task (with a task.toml), or a folder of them")
        seen: dict[str, Path] = {}
        for folder in folders:
            tree = _tree(folder / "task.toml")
            if tree.get("steps"):
                self._lost.append(f"{folder.name}: left out: a task of several steps")
            elif str(tree.get("environment", {}).get("os", "linux")).lower() != "linux":
                self._lost.append(f"{folder.name}: left out: not for Linux")
            else:
                task = self._task(folder, tree)
                if task.id in seen:
                    raise ConfigError(f"{folder}: the task {task.id!r} is in {seen[task.id]}, too")
                seen[task.id] = folder
                yield task

    def loss(self) -> list[str]:
        return list(self._lost)

    def _task(self, folder: Path, tree: dict[str, Any]) -> Task:
        toml = record(_Toml, tree, str(folder / "task.toml"))
        tests, solution = _files(folder / "tests"), _files(folder / "solution")
        if "test.sh" not in tests:
            raise ConfigError(f"{folder}: expected a file tests/test.sh, got {', '.join(tests) or 'none'}")
        world, seconds = toml.environment, toml.agent.timeout_sec or self._config.limits.seconds
        workdir = world.workdir or _workdir(folder / "environment" / "Dockerfile")
        sizes: dict[str, Any] = {"memory": world.memory_mb, "disk": world.storage_mb}
        spec = SandboxSpec(
            files={k: v for k, v in _files(folder / "environment").items() if not _CONTAINER_FILES.fullmatch(k)},
            env={k: v for k, v in world.env.items() if "${" not in v},  # a value from the host
            cpu_seconds=seconds * max(world.cpus, 1.0),
            **{name: mib << 20 for name, mib in sizes.items() if mib},
        )
        task = Task(
            id=toml.task.name or folder.resolve().name,
            domain=self._config.domain,
            messages=(Message("user", _text(folder / "instruction.md")),),
            limits=msgspec.structs.replace(self._config.limits, seconds=seconds),
            sandbox=spec,
            artifacts=tuple(path for given in toml.artifacts if (path := _placed(given, workdir))),
            reference={
                "tests": tests,
                "solution": solution,
                "seconds": toml.verifier.timeout_sec,
                "env": toml.verifier.env,
                "solution_env": toml.solution.env,
            },
            provenance=Provenance(source=str(folder), licence=self._config.licence),
        )
        self._lost += [f"{task.id}: {what}" for what in (*_unmapped(toml, tree, workdir), *_unbuilt(folder))]
        return task


def _unmapped(toml: _Toml, tree: dict[str, Any], workdir: str) -> Iterator[str]:
    """What task.toml asks for and a task cannot say."""
    for key, value in unread(toml, tree):
        yield f"{key} = {value!r}"
    if toml.environment.network_mode != "no-network":
        yield f"environment.network_mode = {toml.environment.network_mode!r}: sandboxes have no network"
    if toml.verifier.environment_mode == "separate":
        yield "verifier.environment_mode = 'separate': the verifier's own image"
    for name, table in [("environment", toml.environment), ("verifier", toml.verifier), ("solution", toml.solution)]:
        yield from (f"{name}.env.{key} = {value!r}: from the host" for key, value in table.env.items() if "${" in value)
    for given in toml.artifacts:
        if not _placed(given, workdir):
            yield f"artifacts: {given!r} is not a path below {workdir}"
    if not toml.artifacts:
        yield "artifacts: none are declared, so that the tests will see nothing of what was done"


def _unbuilt(folder: Path) -> Iterator[str]:
    """What the folder holds, or lacks, beyond that."""
    for path in sorted((folder / "environment").glob("*")):
        if _CONTAINER_FILES.fullmatch(path.name):
            yield f"environment/{path.name}: not built"
    if not (folder / "solution" / "solve.sh").exists():
        yield "no solution/solve.sh: its tests cannot be audited"


def _placed(artifact: str | dict[str, Any], workdir: str) -> str:
    """An artifact's path relative to the working directory, "" when it is not below that, or is more than a path."""
    source = artifact if isinstance(artifact, str) else artifact["source"] if artifact.keys() == {"source"} else ""
    path = PurePosixPath(workdir, str(source))
    below = path.is_relative_to(workdir) and path != PurePosixPath(workdir) and ".." not in path.parts
    return str(path.relative_to(workdir)) if below else ""


def _tree(path: Path) -> dict[str, Any]:
    """task.toml with older keys as they are called now: version, memory, storage, allow_internet."""
    try:
        tree = tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    if "version" in tree:
        tree.setdefault("schema_version", tree.pop("version"))
    world = tree.get("environment", {})
    if not isinstance(world, dict):
        raise ConfigError(f"{path}: environment: expected a table, got {world!r}")
    for name in {"memory", "storage"} & world.keys():
        size = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG])", str(given := world.pop(name)).strip().upper())
        if size is None:
            raise ConfigError(f"{path}: environment.{name}: expected a size like '512M' or '2G', got {given!r}")
        world.setdefault(f"{name}_mb", int(float(size[1]) * _UNITS[size[2]]))
    if (internet := world.pop("allow_internet", None)) is not None:
        world.setdefault("network_mode", "public" if internet else "no-network")
    return tree


def _workdir(dockerfile: Path) -> str:
    """Each WORKDIR is relative to the one before."""
    given = re.findall(r"(?im)^\s*WORKDIR\s+(\S+)", _text(dockerfile)) if dockerfile.is_file() else []
    return str(PurePosixPath("/", *given))


def _text(path: Path) -> str:
    try:
        return _own(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected a file of UTF-8 text: {error}") from None


def _files(folder: Path) -> dict[str, bytes]:
    """Content by path."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        if _own(path).is_file():
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


def _own(path: Path) -> Path:
    """A link could lead out of the task, and is refused."""
    if path.is_symlink():
        raise ConfigError(f"{path}: expected files of the task's own, got a symbolic link")
    return path
