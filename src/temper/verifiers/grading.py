"""The one way from an episode to a verdict: `grade`. Faults, limits and missing references never reach a verifier.

A plugin is a reference type, settings and `judge(given, reference, settings)`, which gives a `Judgement` or raises a
FaultError with a word of the blame table; `create` is a `Plugin` of these. What a right answer is, the plugins know.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct, field

from temper.core.blame import FaultError
from temper.core.errors import BackendError, MissingError
from temper.core.protocols import SandboxBackend, Verifier
from temper.core.task import Task
from temper.core.trace import Evidence, Stop, Trace, Verdict
from temper.verifiers.pool import Pool

T = TypeVar("T")
Text = Annotated[str, Meta(pattern=r"\S")]  # of a reference: not blank, as that would pass by saying nothing
Some = Annotated[list[T], Meta(min_length=1)]

_FINISHED = ("answer", "done")  # every other stop is a fault or a limit that the policy ran into
_MECHANICS = {f"temper.verifiers.{name}" for name in ("pool", "processes", "worker")}  # decide about no answer


async def grade(task: Task, trace: Trace, artifacts: Mapping[str, bytes], verifier: Verifier) -> Verdict:
    """Never raises. A trace that ran into its own limit scores 0, whatever it had delivered by then (`core.blame`)."""
    if trace.fault is not None:
        return Verdict.ruled(trace.fault.what, trace.id, verifier.hash, trace.fault.detail)
    if trace.stop not in _FINISHED:
        what = trace.stop if trace.stop in get_args(Stop) and trace.stop != "fault" else "worker-lost"
        return Verdict.ruled(what, trace.id, verifier.hash, f"the episode ended by: {trace.stop}")
    if task.reference is None:
        return Verdict.ruled("reference-missing", trace.id, verifier.hash, f"task {task.id} has no reference")
    try:
        return await verifier.grade(task, trace, artifacts)
    except FaultError as error:
        return Verdict.ruled(error.fault.what, trace.id, verifier.hash, error.fault.detail)
    except BackendError as error:  # a pool that is closing, a disk that is full
        return Verdict.ruled("backend-lost", trace.id, verifier.hash, str(error)[:2000])
    except Exception as error:  # the named boundary of every verifier
        detail = f"{type(error).__name__}: {error}"
        return Verdict.ruled("verifier-crash", trace.id, verifier.hash, detail[:2000])


class Judgement(Struct, frozen=True):
    """What a plugin found: the score in [0, 1], why (fit to be shown to the policy), and named parts.

    `reward`: for training, where that is not the score.
    """

    score: float
    why: str = ""
    components: dict[str, float] = field(default_factory=dict)
    reward: float | None = None

    @classmethod
    def of(cls, whys: list[str], components: Mapping[str, float] | None = None) -> Judgement:
        """Right where nothing speaks against it; the first reasons are told."""
        return cls(float(not whys), "; ".join(whys[:3]), dict(components or {}))


class Given(NamedTuple):
    """An episode that is judged, and where checks and programs may run. `state` is what the plugin prepared."""

    task: Task
    trace: Trace
    artifacts: Mapping[str, bytes]
    pool: Pool
    sandboxes: SandboxBackend
    state: Any

    @property
    def answer(self) -> str:
        """What was said in the end, without lone surrogates, which could not be sent to a worker."""
        return self.trace.answer.encode("utf-8", "replace").decode()

    def file(self, name: str) -> bytes:
        """A declared artifact. Raises FaultError("artifact-missing")."""
        if name not in self.artifacts:
            raise FaultError("artifact-missing", "verifiers", f"{name} was not delivered")
        return self.artifacts[name]

    def files(self) -> dict[str, bytes]:
        """All that the task declares. Raises FaultError("artifact-missing")."""
        return {path: self.file(path) for path in self.task.artifacts}


Judge = Callable[[Given, Any, Any], Awaitable[Judgement]]


class Plugin(NamedTuple):
    """The `create(config, pool, sandboxes)` of a verifier.

    `problem` says why a reference is none, "" when it is sound. `extra` is that of ours which brings the libraries.
    `prepare(settings)` is what a grader makes once.
    """

    module: str
    config: Callable[..., Any]
    reference: type[Struct]
    judge: Judge
    problem: Callable[[Any, Task], str] = lambda reference, task: ""
    libraries: Callable[[Any], tuple[str, ...]] = lambda settings: ()
    extra: str = ""
    prepare: Callable[[Any], Any] = lambda settings: None

    def __call__(self, config: Any = None, pool: Any = None, sandboxes: Any = None) -> Grader:
        """Raises MissingError for a library that is not installed."""
        return Grader(self, config or self.config(), pool, sandboxes)


class Grader:
    """A `core.protocols.Verifier` made of a plugin."""

    def __init__(self, plugin: Plugin, settings: Any, pool: Pool, sandboxes: SandboxBackend) -> None:
        self.name = plugin.module.rpartition(".")[2]
        self.hash = fingerprint(settings, plugin.module, libraries=plugin.libraries(settings), extra=plugin.extra)
        self._plugin, self._settings, self._pool, self._sandboxes = plugin, settings, pool, sandboxes
        self._state = plugin.prepare(settings)

    async def grade(self, task: Task, trace: Trace, artifacts: Mapping[str, bytes]) -> Verdict:
        try:
            reference = msgspec.convert(task.reference, self._plugin.reference)
            if problem := self._plugin.problem(reference, task):
                raise ValueError(problem)
        except (ValueError, ZeroDivisionError) as error:  # a msgspec.ValidationError, too
            return Verdict.ruled("reference-missing", trace.id, self.hash, f"task {task.id}, {self.name}: {error}")
        given = Given(task, trace, artifacts, self._pool, self._sandboxes, self._state)
        try:
            found = await self._plugin.judge(given, reference, self._settings)
        except FaultError as error:
            return Verdict.ruled(error.fault.what, trace.id, self.hash, error.fault.detail)
        why = found.why.encode("utf-8", "backslashreplace").decode()  # a lone surrogate could not be stored
        evidence = (Evidence(why),) if why else ()
        rewards = {len(trace.segments) - 1: found.reward} if found.reward is not None and trace.segments else {}
        more = {"score": found.score, "rewards": rewards, "components": found.components, "evidence": evidence}
        return Verdict.ruled("graded", trace.id, self.hash, **more)


def fingerprint(settings: Struct, *modules: str, libraries: tuple[str, ...] = (), extra: str = "") -> str:
    """Content hash of what decides: settings, modules and those of ours that they name, versions of libraries.

    A module's table of the same name (.toml) counts as its source.

    Raises MissingError for a library that is not installed; `extra` of ours brings it.
    """
    try:
        versions = [metadata.version(library) for library in libraries]
    except metadata.PackageNotFoundError as error:
        wanted = f"'temper-rl[{extra}]'" if extra else error.name
        raise MissingError(f"{modules[0]} needs {error.name}: pip install {wanted}") from None
    digest = hashlib.sha256(msgspec.json.encode((settings, versions)))
    for module in sorted(closure((*modules, __name__))):
        data = Path(_origin(module)).with_suffix(".toml")
        digest.update(source(module).encode() + (data.read_bytes() if data.exists() else b""))
    return digest.hexdigest()[:16]


def closure(modules: tuple[str, ...]) -> set[str]:
    """The modules, and all of this room that they import or name in a text, as programs for sandboxes are named."""
    found, left = set[str](), list(modules)
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left += [name for name in _named(source(module)) if name not in _MECHANICS and _ours(name)]
    return found


def source(module: str) -> str:
    """Text of a module, which is not imported."""
    return Path(_origin(module)).read_text("utf-8")


def _origin(module: str) -> str:
    return importlib.util.find_spec(module).origin  # type: ignore[union-attr, return-value]


def _named(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\btemper\.verifiers\.[a-z_.]*[a-z_]", node.value)


def _ours(name: str) -> bool:
    """Whether it is a module of this room, told by its file, so that nothing is imported."""
    room = __name__.rpartition(".")[0]
    path = Path(__file__).parent.joinpath(*name.removeprefix(f"{room}.").split("."))
    return name.startswith(f"{room}.") and path.with_suffix(".py").is_file()
