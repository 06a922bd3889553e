"""The processes behind `verifiers.pool`: a template that imports checks and never sees an answer, and its forks.

A fork of a warm interpreter costs milliseconds, where a new one costs the import of its checks (of sympy a second), so
that one that hangs or dies is replaced at once. Deadlines are the owner's: it kills. Everything ends with the owner.

Template, packets of msgpack. In: ["load", function]; ["fork", memory] with a socket; ["wait", pid]. Out, for the last
two: [pid, loaded functions]; the exit code, negative for a signal.

Worker, frames of a 4-byte little-endian length and msgpack. In: [function, args]. Out: ["ready", None] after importing
a function; then ["value", result], ["limit", text] (memory, recursion) or ["crash", text] for each job.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
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
_PACKET = 1 << 16

Functions = dict[str, Callable[..., Any]]


def main() -> None:
    """argv: file descriptor of the template's socket, the owner's pid."""
    descriptor, owner = map(int, sys.argv[1:])
    if not _dies_with(owner):
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=descriptor) as control:
        template(control)


def template(control: socket.socket) -> None:
    loaded: Functions = {}
    while True:
        packet, descriptors, *_ = socket.recv_fds(control, _PACKET, 1)
        if not packet:
            return
        what, argument = msgspec.msgpack.decode(packet)
        if what == "load":
            with contextlib.suppress(Exception):  # the worker that needs it says what is wrong
                loaded[argument] = load(argument)
            continue
        if what == "fork":
            answer: Any = [_fork(control, descriptors[0], argument, loaded), list(loaded)]
        else:
            answer = _exit_code(argument)
        control.send(msgspec.msgpack.encode(answer))


def load(function: str) -> Callable[..., Any]:
    module, _, attribute = function.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _fork(control: socket.socket, descriptor: int, memory: int, loaded: Functions) -> int:
    parent = os.getpid()
    gc.freeze()  # so that collecting in a worker does not copy what it shares
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    try:
        control.close()
        if _dies_with(parent):
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            with socket.socket(fileno=descriptor) as channel, channel.makefile("rb") as incoming:
                serve(channel, incoming, loaded)
    finally:
        os._exit(0)


def _exit_code(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # of an earlier template, with which it died
        return -signal.SIGKILL


def serve(channel: socket.socket, incoming: Any, known: Functions) -> None:
    """Answer jobs until the owner closes its end."""
    while len(head := incoming.read(4)) == 4:
        name, args = msgspec.msgpack.decode(incoming.read(int.from_bytes(head, "little")))
        try:
            if name not in known:
                known[name] = load(name)
                reply(channel, ("ready", None))
            reply(channel, ("value", known[name](*args)))
        except (MemoryError, RecursionError) as error:
            reply(channel, ("limit", type(error).__name__))
        except Exception as error:
            reply(channel, ("crash", "".join(traceback.format_exception(error)[-3:])))


def reply(channel: socket.socket, frame: tuple[str, Any]) -> None:
    try:
        content = msgspec.msgpack.encode(frame)
    except UnicodeEncodeError:  # what a policy named so that nobody could be told
        content = msgspec.msgpack.encode(_sendable(frame))
    channel.sendall(len(content).to_bytes(4, "little") + content)


def _sendable(value: Any) -> Any:
    """The same with lone surrogates spelled out."""
    if isinstance(value, dict):
        return {_sendable(key): _sendable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sendable(item) for item in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _dies_with(parent: int) -> bool:
    """Whether it is still there to die with."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


if __name__ == "__main__":
    main()
