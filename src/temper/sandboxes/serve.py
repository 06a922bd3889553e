"""Serves a backend's sandboxes to other machines: `temper sandbox serve`; the other end is `remote`.

A connection owns the sandboxes that it opened: when it ends, for whatever reason, they are closed. Without a key and
TLS it listens on loopback only, where, without a key, whoever has an account may run code in its sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec.structs import replace

from temper.core.blame import FaultError
from temper.core.errors import RefusedError, TemperError
from temper.core.protocols import Sandbox, SandboxBackend
from temper.sandboxes import link

_GREETING = 10.0


@contextlib.asynccontextmanager
async def serving(
    backend: SandboxBackend, host: str, port: int, key: bytes, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[int]:
    """Serves while the context is open; gives the port, which the system chooses for 0. Raises ConfigError,
    RefusedError where this machine cannot listen there."""
    link.guard(host, port, key, tls, "--key-file, --certificate and --certificate-key")
    connections: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(task := asyncio.current_task())  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(_GREETING):
                proven = await link.greet(reader, writer, key, client=False)
            await _Connection(backend, proven).serve()
        except (OSError, TimeoutError):
            return  # a stranger, or the owner has gone
        finally:
            connections.discard(task)  # type: ignore[arg-type]
            writer.transport.abort()

    try:
        server = await asyncio.start_server(connected, host, port, ssl=tls)
    except OSError as error:  # the port is taken, the host unknown or another machine's
        why = error.strerror or error
        raise RefusedError(
            f"cannot listen on {host}:{port} ({why}): choose another --port, or a --host of this machine"
        ) from error
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


class _Connection:
    """One client: its sandboxes, and its calls in flight by number."""

    def __init__(self, backend: SandboxBackend, proven: link.Link) -> None:
        self._backend, self._link = backend, proven
        self._boxes: dict[str, Sandbox] = {}
        self._calls: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        self._link.send(link.Answer(0, msgspec.Raw(msgspec.msgpack.encode(dict(self._backend.capabilities())))))
        try:
            while True:
                call: link.Call = await self._link.receive(link.Call)
                try:
                    given = msgspec.msgpack.decode(call.given, type=link.METHODS[call.method][0])
                except (KeyError, msgspec.MsgspecError) as error:
                    raise ConnectionError(f"a call out of form: {error}") from error
                if call.method != "cancel":
                    self._calls[call.number] = asyncio.create_task(self._answer(call, given))
                elif running := self._calls.get(given[0]):
                    running.cancel()
        finally:
            for running in self._calls.values():
                running.cancel()
            await asyncio.gather(*self._calls.values(), return_exceptions=True)
            await asyncio.gather(*(box.close() for box in self._boxes.values()), return_exceptions=True)

    async def _answer(self, call: link.Call, given: tuple[Any, ...]) -> None:
        answer = link.Answer(call.number)
        try:
            found = await self._do(call, given)
            if call.method in link.OPENING:
                self._boxes |= {box.id: box for box in found}
                answer = replace(answer, opened=[box.id for box in found])
            else:
                answer = replace(answer, result=msgspec.Raw(msgspec.msgpack.encode(found)))
        except Exception as error:
            answer = replace(answer, failed=_failure(error))
        finally:
            self._calls.pop(call.number, None)
        self._link.send(answer)

    async def _do(self, call: link.Call, given: tuple[Any, ...]) -> Any:
        if call.method == "open":
            return [await self._backend.open(*given)]
        box: Any = self._boxes.pop(call.box, None) if call.method == "close" else self._boxes.get(call.box)
        if box is None:
            raise FaultError("backend-lost", call.box, "there is no such sandbox (any more)")
        if call.method == "exec":
            argv, stdin, seconds, env = given
            return await box.exec(argv, stdin=stdin, seconds=seconds, env=env)
        return await getattr(box, call.method)(*given)


def _failure(error: Exception) -> tuple[str, str, str | int]:
    """Every call is answered; see `link.Answer`."""
    if isinstance(error, FaultError):
        return "fault", f"{error.fault.where}: {error.fault.detail}", error.fault.what
    if isinstance(error, TemperError):
        return type(error).__name__, str(error), 0
    if isinstance(error, OSError):
        return "os", error.strerror or str(error), error.errno or 0
    if isinstance(error, LookupError | ValueError):
        return "wrong", str(error), 0
    return "fault", f"{type(error).__name__}: {error}", "backend-lost"
