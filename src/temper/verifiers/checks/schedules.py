"""Runs inside a sandbox: a call under a seeded schedule, so that a race shows by the seed and not by luck.

`under(seed, call)` lets one thread run at a time and hands over at bytecodes of the program's own files, as the seed
says; locks, conditions, queues, joins and sleeps hand over instead of blocking, and a state in which all of them wait
raises RuntimeError. asyncio tasks that are ready run in seeded order, on a clock that jumps to the next timer.

Standard library only. Not covered: processes, and C code that blocks by itself (sockets).
"""

from __future__ import annotations

import asyncio
import collections
import queue
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_STUCK = 20_000  # hand-overs without any progress after which all threads are held to wait for each other
_TIMEOUT = 200  # hand-overs that stand for the end of a wait with a time-out
_START = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"
_REAL_LOCK, _REAL_START = threading._allocate_lock, getattr(threading, _START)  # type: ignore[attr-defined]
_REAL_SLEEP = time.sleep
_HERE = str(Path.cwd())


def under(seed: int, call: Callable[[], Any]) -> Any:
    """What `call()` gives under the seed's schedule. Raises what it raises."""
    turns = Turns(seed)
    replacements = turns.replacements()
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in replacements]
    for owner, name, value in replacements:
        setattr(owner, name, value)
    asyncio.set_event_loop_policy(_policy(random.Random(seed)))
    threading.settrace(turns.trace)
    sys.settrace(turns.trace)
    try:
        return call()
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        turns.over = True
        asyncio.set_event_loop_policy(None)
        for owner, name, value in kept:
            setattr(owner, name, value)


class Turns:
    """Whose turn it is. Every other thread waits at a gate of its own until it is handed the turn."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.often = self.rng.choice((0.02, 0.1, 0.4))  # of the bytecodes
        self.numbers = {threading.get_ident(): 0}
        self.gates: dict[int, Any] = {}
        self.idle = 0
        self.over = False

    def trace(self, frame: Any, event: str, argument: Any) -> Any:
        if self.over or not frame.f_code.co_filename.startswith(_HERE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.idle = 0
            if self.rng.random() < self.often:
                self.hand_over()
        return self.trace

    def hand_over(self) -> None:
        """Another thread's turn, if there is one, until it is mine again."""
        self.idle += 1
        if self.idle > _STUCK:
            raise RuntimeError("deadlock: all threads wait for each other")
        if self.over or not self.gates:
            _REAL_SLEEP(1e-4)  # for a thread to end
            return
        number = self.numbers[threading.get_ident()]
        other = self.gates.pop(self.rng.choice(sorted(self.gates)))
        mine = self.gates[number] = _REAL_LOCK()
        mine.acquire()
        other.release()
        mine.acquire()

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        number = len(self.numbers) + len(self.gates)
        while number in self.gates or number in self.numbers.values():
            number += 1
        gate = self.gates[number] = _REAL_LOCK()
        gate.acquire()

        def run() -> None:
            gate.acquire()
            self.numbers[threading.get_ident()] = number
            sys.settrace(self.trace)
            try:
                function(*(args[0] if args else ()))
            finally:
                sys.settrace(None)
                del self.numbers[threading.get_ident()]
                if self.gates:
                    self.gates.pop(self.rng.choice(sorted(self.gates))).release()

        return _REAL_START(run, *([()] if args else []), **kwargs)

    def replacements(self) -> list[tuple[Any, str, Any]]:
        turns = self

        class Lock:
            """`threading.Lock` that hands over instead of blocking."""

            def __init__(self) -> None:
                self.real = _REAL_LOCK()

            def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
                tries = 0
                while not self.real.acquire(False):
                    tries += 1
                    if not blocking or (timeout >= 0 and tries > _TIMEOUT):
                        return False
                    turns.hand_over()
                return True

            def release(self) -> None:
                self.real.release()

            def locked(self) -> bool:
                return self.real.locked()

            __enter__ = acquire

            def __exit__(self, *exception: object) -> None:
                self.release()

            def _at_fork_reinit(self) -> None:
                self.real = _REAL_LOCK()

        def join(thread: threading.Thread, timeout: float | None = None) -> None:
            tries = 0
            while thread.is_alive() and (timeout is None or tries < _TIMEOUT):
                tries += 1
                turns.hand_over()

        def sleep(seconds: float) -> None:
            for _ in range(turns.rng.randint(1, 8)):
                turns.hand_over()

        return [
            (threading, "Lock", Lock),
            (threading, "_allocate_lock", Lock),
            (threading, "RLock", threading._PyRLock),  # type: ignore[attr-defined]
            (threading, _START, self.start),
            (threading.Thread, "join", join),
            (queue, "SimpleQueue", queue._PySimpleQueue),  # type: ignore[attr-defined]
            (time, "sleep", sleep),
        ]


def _policy(rng: random.Random) -> asyncio.AbstractEventLoopPolicy:
    class Loop(asyncio.SelectorEventLoop):
        def time(self) -> float:
            return getattr(self, "now", 0.0)

        def _run_once(self) -> None:
            ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
            if not ready and scheduled:
                self.now = max(self.time(), scheduled[0]._when)
            tasks = [
                handle for handle in ready if isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)
            ]
            order = iter(rng.sample(tasks, len(tasks)))
            self._ready = collections.deque(next(order) if handle in tasks else handle for handle in ready)
            super()._run_once()  # type: ignore[misc]

    class Policy(asyncio.DefaultEventLoopPolicy):
        _loop_factory = Loop

    return Policy()
