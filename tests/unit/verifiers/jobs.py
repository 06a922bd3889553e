"""Checks for the pool's tests; run inside workers."""

import os
import signal
import time


def double(x: int) -> int:
    return 2 * x


def slow_double(x: int) -> int:
    time.sleep(0.01)
    return 2 * x


def spin(_: int) -> None:
    while True:
        pass


def hang_at(x: int, at: int) -> int:
    while x == at:
        pass
    return x


def echo(text: str) -> str:
    return text


def sleep(_: int) -> None:
    time.sleep(1000)


def hoard(_: int) -> int:
    return len(bytearray(1 << 34))


def deep(x: int) -> int:
    return deep(x + 1)


def segfault(_: int) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def broken(x: int) -> int:
    return x // 0


def unspeakable(_: int) -> object:
    return object()


def pid(_: int) -> int:
    return os.getpid()


def modules() -> list[str]:
    import sys

    return [name for name in ("torch", "numpy", "sympy") if name in sys.modules]


def hang_unless_gold(x: str) -> bool:
    while x != "gold":
        pass
    return True
