"""What all tests share.

Before torch is loaded: its threads wait without spinning for long, since tests share the cores with sandboxes, and
there is one thread where several workers of pytest-xdist do. And Ctrl-C is handled here, so that `asyncio.run` installs
no handler of its own: when that is put back, `signal` makes an error message of it and drops it, in which the main task
is printed with its result. Where that was traces or tokens, a third of the time went there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("GOMP_SPINCOUNT", "10000")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

signal.signal(signal.SIGINT, lambda number, frame: signal.default_int_handler(number, frame))

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Two threads on a tiny model only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def descendants() -> Iterator[Callable[[], list[int]]]:
    """descendants(): live processes below this one, orphans too: what a dead owner leaves becomes this one's child."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield _descendants
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _descendants() -> list[int]:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # zombies are not alive
            pass
    found, todo = [], [os.getpid()]
    while todo:
        with contextlib.suppress(OSError):  # it has just ended
            for task in Path(f"/proc/{todo.pop()}/task").iterdir():
                children = [int(pid) for pid in (task / "children").read_text().split()]
                found += children
                todo += children
    return found
