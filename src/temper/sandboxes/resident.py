"""Runs inside a sandbox, never here: a warm Python that forks itself for each program. Standard library only.

Started as `python3 -I -c SOURCE PATHS PRELOAD` (each joined by ":" and ","), with a socket to its box as descriptor 3.
What is said on it is in `native/command.h` and `native/resident.c`: first what a fork has to give up, then for each
program its descriptors: the namespaces (pid, mnt, ipc, net), the program, stdin, stdout, stderr, a socket to the pid 1
of those namespaces, which is told how the fork ended, and, where the kernel has Landlock, the rules for it.

This process keeps three capabilities over its sandbox, so it runs nothing but what is here and what it preloads. A fork
gives up everything before it runs a line of its program.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib
import os
import resource
import socket
import struct
import sys
import threading
import types
from typing import NoReturn

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
DUMPABLE, SECCOMP, CAPBSET_DROP, SECUREBITS, NO_NEW_PRIVS, AMBIENT = 4, 22, 24, 28, 38, 47  # linux/prctl.h
LANDLOCK_RESTRICT_SELF = 446  # on every architecture
HEAD = struct.Struct("=IIQ")
NOTE = struct.Struct("=IiQQ64s")


def main() -> None:
    control = socket.socket(fileno=3)
    control.set_inheritable(False)
    orders = control.recv(1 << 16)
    paths, preload = sys.argv[1:]
    sys.path += filter(None, paths.split(":"))
    sys.argv = [""]
    try:
        for name in filter(None, preload.split(",")):
            importlib.import_module(name)
        LIBC.prctl(DUMPABLE, 0, 0, 0, 0)
    except BaseException as error:
        control.send(f"{type(error).__name__}: {error}".encode()[:4000] + b"\0")
        return
    gc.collect()
    gc.freeze()  # else a collection in a fork would write to, and so copy, all of these pages
    control.send(b"\0")
    while True:
        word, given, _, _ = socket.recv_fds(control, 4, 10)
        if not word:
            return
        serve(control, orders, given)


def serve(control: socket.socket, orders: bytes, given: list[int]) -> None:
    """One fork: made, waited for, told about."""
    pid_space, spaces, (program, *streams), rules = given[0], given[1:4], given[4:8], given[9:]
    answer = socket.socket(fileno=given.pop(8))
    child = 0
    try:
        enter(pid_space)
        child = os.fork()
        if not child:
            control.detach()
            become(orders, spaces, program, streams, rules, answer)
    except OSError as error:
        tell(answer, 0, error.errno or 0, broken=b"fork the resident interpreter")
    for descriptor in given:
        os.close(descriptor)
    if child:
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        tell(answer, 0, ended.si_status if ended else 0)  # it still counts as a process
        with contextlib.suppress(OSError):
            answer.recv(1)
        _, status, used = os.wait4(child, 0)
        tell(answer, 1, status, used.ru_maxrss << 10, int((used.ru_utime + used.ru_stime) * 1e6))
    answer.close()


def tell(answer: socket.socket, reaped: int, status: int, memory: int = 0, cpu: int = 0, broken: bytes = b"") -> None:
    """To pid 1, which may have been killed, and the fork with it."""
    with contextlib.suppress(OSError):
        answer.send(NOTE.pack(reaped, status, memory, cpu, broken))


def become(
    orders: bytes, spaces: list[int], program: int, streams: list[int], rules: list[int], answer: socket.socket
) -> NoReturn:
    """In the fork: enters its namespaces, gives up all privileges, runs the program, ends."""
    try:
        LIBC.prctl(DUMPABLE, 1, 0, 0, 0)  # nobody else is in its pid namespace yet
        os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"1000")
        for space in spaces:
            enter(space)
        os.setpgid(0, 0)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        source = os.read(program, os.fstat(program).st_size)
        os.chdir("/sandbox")
        give_up(orders, rules)
    except BaseException as error:
        tell(answer, 0, getattr(error, "errno", None) or 0, broken=b"enter the fork's namespaces")
        os._exit(1)
    answer.detach()
    os.closerange(3, 1 << 30)
    if "numpy.random" in sys.modules:  # the `random` module sees to itself; without a number this takes 1.5 ms
        sys.modules["numpy.random"].seed(int.from_bytes(os.urandom(4), "little"))
    os._exit(run(source))


def enter(space: int) -> None:
    if LIBC.setns(space, 0):
        raise OSError(ctypes.get_errno(), "setns")


def give_up(orders: bytes, rules: list[int]) -> None:
    """As `drop_privileges` of native/inside.c does for commands that are executed."""
    cpu, securebits, capabilities = HEAD.unpack_from(orders)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    code = ctypes.create_string_buffer(orders[HEAD.size :], len(orders) - HEAD.size)
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(code)))
    for capability in range(64):
        if capabilities >> capability & 1:
            LIBC.prctl(CAPBSET_DROP, capability, 0, 0, 0)
    failed = LIBC.prctl(SECUREBITS, securebits, 0, 0, 0) or LIBC.prctl(AMBIENT, 4, 0, 0, 0)
    failed = failed or LIBC.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)) or LIBC.prctl(NO_NEW_PRIVS, 1, 0, 0, 0)
    for ruleset in rules:
        failed = failed or LIBC.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0)
    if failed or LIBC.prctl(SECCOMP, 2, ctypes.addressof(program), 0, 0):
        raise OSError(ctypes.get_errno(), "give up privileges")


def run(source: bytes) -> int:
    """The program as `__main__`; its exit status, after what an interpreter does at its end."""
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    try:
        exec(compile(source, "<string>", "exec", dont_inherit=True), main.__dict__)
        code = 0
    except BaseException as error:
        code = complain(error)
    for last in (threading._shutdown, atexit._run_exitfuncs):
        try:
            last()
        except BaseException as error:
            complain(error)
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        try:
            if not stream.closed:
                stream.flush()
        except BaseException:
            code = code or 120
    return code & 255


def complain(error: BaseException) -> int:
    """What an interpreter says and gives for an exception that nobody caught."""
    try:
        if not isinstance(error, SystemExit):
            trace = error.__traceback__ and error.__traceback__.tb_next  # without the frame above
            sys.excepthook(type(error), error.with_traceback(trace), trace)
        elif error.code is None or isinstance(error.code, int):
            return error.code or 0
        else:
            print(error.code, file=sys.stderr)
    except BaseException:
        return 1
    return 1


if __name__ == "__main__":
    main()
