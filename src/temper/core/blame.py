"""Who is to blame: the one table that decides between a score, a zero and a mask.

Every room names what happened with a word of `TABLE`; nobody else turns an event into a status. Masked means: no
gradient, not in any mean, not in the group's baseline; counted and shown by domain.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from typing import Literal

from msgspec import Struct

from temper.core.errors import BackendError, CorruptError

Status = Literal["graded", "invalid", "infra"]
Blame = Literal["policy", "task", "verifier", "infrastructure"]
Training = Literal["score", "floor", "quarantine", "refill", "retry"]


class Ruling(Struct, frozen=True):
    """One row of the table. `training`: use the score, use the domain's floor, or mask and what to do next."""

    status: Status
    blame: Blame
    training: Training

    @property
    def masked(self) -> bool:
        return self.status != "graded"


_SCORE = Ruling("graded", "policy", "score")
_FLOOR = Ruling("graded", "policy", "floor")
_TASK = Ruling("invalid", "task", "quarantine")
_VERIFIER = Ruling("invalid", "verifier", "refill")
_INFRA = Ruling("infra", "infrastructure", "retry")

TABLE: dict[str, Ruling] = {
    "graded": _SCORE,
    # the policy's own doing
    "exited": _SCORE,
    "signalled": _SCORE,  # a crash of the policy's program is judged like any other result
    "deadline": _FLOOR,
    "oom": _FLOOR,
    "pids": _FLOOR,
    "disk": _FLOOR,
    "output": _FLOOR,
    "policy": _FLOOR,  # refused system call or path
    "turns": _FLOOR,
    "tokens": _FLOOR,
    "context": _FLOOR,
    "seconds": _FLOOR,
    "malformed": _FLOOR,
    "artifact-missing": _FLOOR,
    "answer-exceeds-verifier": _FLOOR,  # again on a fresh worker, while the gold answer passes there
    # the task cannot be graded
    "gold-fails": _TASK,
    "reference-missing": _TASK,
    "environment-broken": _TASK,
    # our verifier is wrong
    "verifier-crash": _VERIFIER,
    "verifier-limit": _VERIFIER,  # exceeded also by the gold answer
    "judge-unreadable": _VERIFIER,
    # ours, and nobody's score
    "backend-lost": _INFRA,
    "engine-lost": _INFRA,
    "worker-lost": _INFRA,
    "lease-lost": _INFRA,
    "our-disk": _INFRA,
    "network": _INFRA,
    "preempted": _INFRA,
    "wait-limit": _INFRA,
}


class Fault(Struct, frozen=True):
    """A failure as data. `what` is a word of `TABLE`, `where` the room or backend, `detail` for people."""

    what: str
    where: str
    detail: str = ""

    @property
    def ruling(self) -> Ruling:
        return TABLE[self.what]


class FaultError(Exception):
    """Carries a `Fault` up to the boundary that records it; it never leaves an episode."""

    def __init__(self, what: str, where: str, detail: str = "") -> None:
        self.fault = Fault(what, where, detail[:2000])
        TABLE[what]  # an unknown word is our bug, found at once
        super().__init__(f"{where}: {what}: {detail}")


@contextlib.contextmanager
def boundary(what: str, where: str) -> Generator[None]:
    """Attribute any exception that crosses this line to `what`.

    Faults already attributed pass unchanged, and so does CorruptError: damaged weights end the run, not one attempt.
    """
    try:
        yield
    except (FaultError, CorruptError, asyncio.CancelledError):
        raise
    except BackendError as error:
        raise FaultError("backend-lost", where, str(error)) from error
    except Exception as error:
        raise FaultError(what, where, f"{type(error).__name__}: {error}") from error
