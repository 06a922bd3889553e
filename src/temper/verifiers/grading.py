"""The one way from an episode to a verdict: `grade`. Faults, limits and missing references never reach a verifier.

`Grader` is the shape that our plugins share: a typed reference, and a `judge` that gives a `Judgement` or raises a
FaultError with a word of the blame table. What a right answer is, the plugins know.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Awaitable, Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import Struct, field

from temper.core.blame import FaultError
from temper.core.errors import BackendError, MissingError
from temper.core.protocols import Verifier
from temper.core.task import Task
from temper.core.trace import Evidence, Stop, Trace, Verdict

_FINISHED = ("answer", "done")  # every other stop is a fault or a limit that the policy ran into


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
    """What a plugin found: the score in [0, 1], why (fit to be shown to the policy), and named parts."""

    score: float
    why: str = ""
    components: dict[str, float] = field(default_factory=dict)


Judge = Callable[[Task, Trace, Mapping[str, bytes], Any], Awaitable[Judgement]]


class Grader:
    """A `core.protocols.Verifier` made of a reference type and an async `judge(task, trace, artifacts, reference)`."""

    def __init__(self, name: str, hash: str, reference: type[Struct], judge: Judge) -> None:
        self.name, self.hash = name, hash
        self._reference, self._judge = reference, judge

    async def grade(self, task: Task, trace: Trace, artifacts: Mapping[str, bytes]) -> Verdict:
        try:
            reference = msgspec.convert(task.reference, self._reference)
        except msgspec.ValidationError as error:
            return Verdict.ruled("reference-missing", trace.id, self.hash, f"task {task.id}, {self.name}: {error}")
        try:
            found = await self._judge(task, trace, artifacts, reference)
        except FaultError as error:
            return Verdict.ruled(error.fault.what, trace.id, self.hash, error.fault.detail)
        why = found.why.encode("utf-8", "backslashreplace").decode()  # a lone surrogate could not be stored
        evidence = (Evidence(why),) if why else ()
        more = {"score": found.score, "components": found.components, "evidence": evidence}
        return Verdict.ruled("graded", trace.id, self.hash, **more)


def delivered(artifacts: Mapping[str, bytes], name: str) -> bytes:
    """A declared artifact. Raises FaultError("artifact-missing")."""
    if name not in artifacts:
        raise FaultError("artifact-missing", "verifiers", f"{name} was not delivered")
    return artifacts[name]


def fingerprint(settings: Struct, *modules: str, libraries: tuple[str, ...] = ()) -> str:
    """Content hash of what decides: settings, source of modules (none is imported), versions of libraries.

    Raises MissingError for a library that is not installed.
    """
    try:
        versions = [metadata.version(library) for library in libraries]
    except metadata.PackageNotFoundError as error:
        raise MissingError(f"{modules[0]} needs {error.name}: pip install {error.name}") from None
    digest = hashlib.sha256(msgspec.json.encode((settings, versions)))
    for module in (*modules, __name__):
        digest.update(source(module).encode())
    return digest.hexdigest()[:16]


def source(module: str) -> str:
    """Text of a module, which is not imported."""
    spec = importlib.util.find_spec(module)
    return Path(spec.origin).read_text("utf-8")  # type: ignore[union-attr, arg-type]
