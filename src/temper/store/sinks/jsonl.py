"""Metrics and events as plain text lines, for people, `grep` and pandas: metrics.jsonl and events.jsonl in the run.

A copy for convenience: the run's logs are the record. NaN becomes null.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from temper.core.trace import Event
from temper.store.disk import disk_errors
from temper.store.run import RunDirectory


def create(config: None, run: RunDirectory) -> JsonLines:
    return JsonLines(run)


class JsonLines:
    def __init__(self, run: RunDirectory) -> None:
        self._metrics = FileIO(run.path / "metrics.jsonl", "a")
        self._events = FileIO(run.path / "events.jsonl", "a")

    def event(self, event: Event) -> None:
        self._write(self._events, event)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._write(self._metrics, {"step": step, **values})

    def close(self) -> None:
        self._metrics.close()
        self._events.close()

    def _write(self, file: FileIO, line: Any) -> None:
        content = msgspec.json.encode(line, enc_hook=_plain) + b"\n"
        with disk_errors(Path(file.name), len(content)):
            file.write(content)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
