"""Runs inside a sandbox, never here: a Python that keeps its state between turns. Standard library only.

Started as `python3 -I -u -c SOURCE` with a socket as stdin. A turn comes as its text and a word, each ended by a NUL;
when it has run, the answer is "STATUS WORD" and a NUL. What it prints goes to stdout and stderr, as does the value of a
last expression, as at a prompt. Nothing that the turn starts inherits the socket.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import os
import signal
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any


def main() -> None:
    talk = os.dup(0)  # not inherited by programs that are started
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.modules["__main__"] = space = types.ModuleType("__main__")
    space.__dict__["__builtins__"] = builtins
    sys.path.insert(0, "")
    words = records(talk)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number, text in enumerate(words, 1):
        status = turn(text.decode("utf-8", "surrogateescape"), f"<turn {number}>", space.__dict__)
        os.write(talk, b"%d %s\0" % (status, next(words)))


def records(talk: int) -> Iterator[bytes]:
    held = b""
    while data := os.read(talk, 1 << 16):
        *whole, held = (held + data).split(b"\0")
        yield from whole


def turn(text: str, name: str, space: dict[str, Any]) -> int:
    """Its status: 0, 1 for an exception, 130 when interrupted. SystemExit ends the session."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tree = ast.parse(text, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec", dont_inherit=True), space)
        if last:
            exec(compile(ast.Interactive([last]), name, "single", dont_inherit=True), space)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        status = 0
    except SystemExit:
        raise
    except BaseException as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        trace = error.__traceback__ and error.__traceback__.tb_next
        traceback.print_exception(error.with_traceback(trace))
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    main()
