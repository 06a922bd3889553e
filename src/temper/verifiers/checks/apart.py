"""Runs inside a sandbox, behind `checks.values` and in front of a program of ours that calls delivered code.

Delivered code runs in a child, which was forked before anything was known to it, and has no access to our stdin and
stdout. What it says is a claim, a report is known by its nonce. Standard library only, and little of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

_UNREADABLE, _PR_SET_DUMPABLE = 0, 4


def apart(serve: Callable[[Any, Any], None]) -> tuple[int, Any, Any]:
    """Fork a child that runs `serve(receive, send)`: its pid, and what we receive from it and send to it."""
    to_child, to_us = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(to_child[1])
        os.close(to_us[0])
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        serve(os.fdopen(to_child[0], "rb"), os.fdopen(to_us[1], "wb", 0))
        os._exit(0)
    os.close(to_child[0])
    os.close(to_us[1])
    return pid, os.fdopen(to_us[0], "rb"), os.fdopen(to_child[1], "wb", 0)


def unreadable() -> None:
    """No other process may read or trace this one."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, _UNREADABLE)


def report(**content: Any) -> None:
    """The last line of stdout."""
    import json

    print("\n" + json.dumps(content), flush=True)


def raised(error: BaseException) -> list[Any]:
    return ["raised", [kind.__name__ for kind in type(error).__mro__], str(error)[:300]]


class Coverage:
    """Which of the lines that were asked about, {path: numbers}, are run once `trace` is set: `seen`."""

    def __init__(self, lines: dict[str, list[int]]) -> None:
        self.lines = {os.path.abspath(path): set(numbers) for path, numbers in lines.items()}  # noqa: PTH100
        self.seen: set[tuple[str, int]] = set()

    def trace(self, frame: Any, event: str, argument: Any) -> Any:
        asked = self.lines.get(os.path.normpath(frame.f_code.co_filename))
        if asked is None:
            return None
        if event == "line" and frame.f_lineno in asked:
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
        return self.trace
