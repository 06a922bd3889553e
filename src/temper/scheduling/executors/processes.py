"""Workers that are processes of this machine: spawned (never forked from a process with torch's threads), killable.

Both sides of the socket are here: `create` for the owner, `main` for the child. A frame is an 8-byte little-endian
length and the bytes of `hosted`. A worker dies with its owner, that is, with the thread of the event loop that spawned
it; what it prints is dropped, and its stderr is the owner's.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping

from temper.scheduling.executors.hosted import Channel, Hosted, Workers

_PR_SET_PDEATHSIG = 1

GIVES = ("cpus",)  # resources of a worker


def create(config: None = None) -> Workers:
    return Workers(_open, GIVES)


async def _open(resources: Mapping[str, float]) -> Channel:
    """`resources`: cpus, which become the threads of the worker's numeric libraries."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    if cpus := resources.get("cpus"):
        environment["OMP_NUM_THREADS"] = str(max(1, round(cpus)))
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_connection(sock=ours)  # first: who is cancelled here leaves no process
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
        )
    return _Socket(process, reader, writer)


class _Socket:
    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer

    async def exchange(self, frame: bytes) -> bytes:
        self._writer.writelines([len(frame).to_bytes(8, "little"), frame])
        try:
            await self._writer.drain()
            return await self._reader.readexactly(int.from_bytes(await self._reader.readexactly(8), "little"))
        except ConnectionError as error:  # the end of the stream is an EOFError already
            raise EOFError from error

    async def end(self) -> str:
        self._process.kill()
        code = await asyncio.to_thread(self._process.wait)
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        return f"its process ended with {code}"


def main() -> None:
    """argv: file descriptor of the socket, the owner's pid."""
    descriptor, owner = map(int, sys.argv[1:])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner:  # it died before the line above
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rb") as incoming, asyncio.Runner() as runner:
        hosted = Hosted(runner.run)
        while len(head := incoming.read(8)) == 8:
            answer = hosted.answer(incoming.read(int.from_bytes(head, "little")))
            channel.sendall(len(answer).to_bytes(8, "little"))
            channel.sendall(answer)


if __name__ == "__main__":
    main()
