"""The process behind one slot of `verifiers.pool`: reads jobs from a socket, answers each, and knows no policy.

Frames are a 4-byte little-endian length and msgpack. In: [function, args]. Out: ["ready", None] at the start and after
importing a function; then ["value", result], ["limit", text] (memory, recursion) or ["crash", text] for each job.
Deadlines are the owner's: it kills. The process ends when its socket or its owner does.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

_PR_SET_PDEATHSIG = 1
_READY = msgspec.msgpack.encode(("ready", None))


def main() -> None:
    """argv: file descriptor of the socket, the owner's pid, bytes of address space."""
    descriptor, owner, memory = map(int, sys.argv[1:])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner:  # it died before the line above
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rb") as incoming:
        serve(channel, incoming)


def serve(channel: socket.socket, incoming: Any) -> None:
    known: dict[str, Callable[..., Any]] = {}
    reply(channel, _READY)
    while len(head := incoming.read(4)) == 4:
        name, args = msgspec.msgpack.decode(incoming.read(int.from_bytes(head, "little")))
        try:
            if name not in known:
                module, _, attribute = name.partition(":")
                known[name] = getattr(importlib.import_module(module), attribute)
                reply(channel, _READY)
            frame = msgspec.msgpack.encode(("value", known[name](*args)))
        except (MemoryError, RecursionError) as error:
            frame = msgspec.msgpack.encode(("limit", type(error).__name__))
        except Exception as error:
            frame = msgspec.msgpack.encode(("crash", "".join(traceback.format_exception(error)[-3:])))
        reply(channel, frame)


def reply(channel: socket.socket, frame: bytes) -> None:
    channel.sendall(len(frame).to_bytes(4, "little") + frame)


if __name__ == "__main__":
    main()
