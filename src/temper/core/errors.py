"""Errors that people see. Faults *inside an episode* are data (`core.blame.Fault`), not these.

TemperError                  exit code 1
 ├─ ConfigError              2   a recipe, an override or an argument is wrong
 ├─ MissingError             3   a model, a file, a package or a plugin is not there
 ├─ CorruptError             4   a checkpoint or a record does not read back as it was written
 ├─ RefusedError             5   this machine or this model cannot do what was asked for (law 12)
 ├─ BackendError             6   something of ours broke: sandbox, engine, worker, disk
 │   └─ DeadlineError        6   a wait passed its limit; the message names what was waited for
 └─ BudgetError              7   a budget of the recipe is used up; nothing finished is lost
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TemperError(Exception):
    """Base of all errors meant for the user. `str(error)` says what was expected, what came, what to do."""

    exit_code = 1


class ConfigError(TemperError):
    exit_code = 2


class MissingError(TemperError):
    exit_code = 3


class CorruptError(TemperError):
    exit_code = 4


class RefusedError(TemperError):
    exit_code = 5


class BackendError(TemperError):
    exit_code = 6


class DeadlineError(BackendError):
    pass


class BudgetError(TemperError):
    exit_code = 7


def nearest(name: str, known: Iterable[str]) -> str:
    """The tail of an error about an unknown name: the closest known names, or all of them when few."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(repr(c) for c in close)}?"
    return f"known: {', '.join(names[:20])}" if names else "none are known"
