"""The directory of one run: recipe, logs, checkpoints, report; one writer, any number of readers.

    recipe.json  the resolved recipe          traces.log verdicts.log events.log metrics.log …  records (`store.log`)
    checkpoints/ KIND-NUMBER folders          report.json report.md report.png why.html         the result
    lock         held by the process that runs it, with its pid

Readers (`view`) need no lock and may come while it is written or after a crash. Decides nothing about what is stored.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from temper.core.errors import ConfigError, CorruptError, MissingError, RefusedError
from temper.core.trace import Event, Trace, Verdict
from temper.store import checkpoint
from temper.store.checkpoint import Latest
from temper.store.disk import disk_errors, write_file
from temper.store.log import Log, verify

T = TypeVar("T")

# A process does not compete with itself for a POSIX lock, which we prefer because forked workers do not inherit it.
_held: set[Path] = set()


class Metrics(Struct, frozen=True):
    """Numbers of one training step."""

    step: int
    stage: str
    values: dict[str, float]


class RunDirectory:
    """Get one from `create`, `open` (to go on) or `view` (to read); close it, or use it in a `with`."""

    def __init__(self, path: Path, lock: int | None) -> None:
        """`lock`: the locked file descriptor of a writer, None for a reader."""
        self.path = path
        self._lock = lock
        self._logs: dict[str, Log[Any]] = {}
        self.traces = self.log("traces", Trace)
        self.verdicts = self.log("verdicts", Verdict)
        self.events = self.log("events", Event)
        self.metrics = self.log("metrics", Metrics)

    @classmethod
    def create(cls, path: str | Path, recipe: Struct | Mapping[str, Any]) -> RunDirectory:
        """A new run. Raises ConfigError when there is one already, RefusedError when another process runs it."""
        path = Path(path).resolve()
        with disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = _acquire(path)
        with _released_on_error(path, lock):
            if (path / "recipe.json").exists():
                raise ConfigError(f"{path} already holds a run: resume it with --resume {path}, or choose another name")
            run = cls(path, lock)
            run.write("recipe.json", msgspec.json.format(msgspec.json.encode(recipe), indent=2))
            return run

    @classmethod
    def open(cls, path: str | Path) -> RunDirectory:
        """Go on with a run, without what a crash left unfinished. Raises MissingError, RefusedError, CorruptError."""
        path = _existing(path)
        lock = _acquire(path)
        with _released_on_error(path, lock):
            for log in sorted(path.glob("*.log")):
                verify(log)  # also those that are read only at the end, hours later
            checkpoint.clean(path / "checkpoints")
            return cls(path, lock)

    @classmethod
    def view(cls, path: str | Path) -> RunDirectory:
        """Read a run, live or dead. Raises MissingError."""
        return cls(_existing(path), None)

    @property
    def recipe(self) -> dict[str, Any]:
        try:
            return msgspec.json.decode((self.path / "recipe.json").read_bytes(), type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise CorruptError(f"{self.path / 'recipe.json'} does not read back: {error}") from None

    @property
    def torn(self) -> dict[str, int]:
        """Bytes of unfinished records that were cut off when this run was opened, by log; empty after a clean end."""
        return {name: log.torn for name, log in self._logs.items() if log.torn}

    def log(self, name: str, kind: type[T]) -> Log[T]:
        """The log `name.log` of records of `kind`; the same object each time."""
        if name not in self._logs:
            self._logs[name] = Log(self.path / f"{name}.log", kind, writable=self._lock is not None)
        return self._logs[name]

    def write(self, name: str, content: bytes | str) -> Path:
        """Replace a whole file of the run at once, e.g. report.json."""
        write_file(self.path / name, content.encode() if isinstance(content, str) else content)
        return self.path / name

    def checkpoint(self, name: str, keep: int = 2) -> contextlib.AbstractContextManager[Path]:
        """`with run.checkpoint("rl-000120") as folder:` write files into `folder`; see `store.checkpoint.write`.

        The logs are on the disk before the checkpoint is, so that it never knows more than they do.
        """
        self.sync()
        return checkpoint.write(self.path / "checkpoints", name, keep)

    def latest(self, kind: str) -> Latest:
        """The newest checkpoint of `kind` that verifies, and which newer ones were skipped."""
        return checkpoint.latest(self.path / "checkpoints", kind)

    def sync(self) -> None:
        """Wait until the disk has all that was appended."""
        for log in self._logs.values():
            log.sync()

    def close(self) -> None:
        try:
            for log in self._logs.values():
                log.close()
        finally:
            if self._lock is not None:
                _release(self.path, self._lock)
                self._lock = None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _existing(path: str | Path) -> Path:
    path = Path(path).resolve()
    if not (path / "recipe.json").is_file():
        raise MissingError(f"no run at {path}: a run directory holds a recipe.json, as `temper run RECIPE` writes it")
    return path


def _acquire(path: Path) -> int:
    if path in _held:
        raise RefusedError(f"{path} is already open for writing in this process")
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(fd, 20).decode("ascii", "replace").strip() or "unknown"
        os.close(fd)
        raise RefusedError(f"process {pid} is running {path}: wait for it, or end it, and try again") from None
    _held.add(path)
    with _released_on_error(path, fd), disk_errors(path / "lock"):
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
    return fd


def _release(path: Path, fd: int) -> None:
    _held.discard(path)
    os.close(fd)


@contextlib.contextmanager
def _released_on_error(path: Path, fd: int) -> Generator[None]:
    try:
        yield
    except BaseException:
        _release(path, fd)
        raise
