"""Sandboxes on another machine, behind `temper sandbox serve` there. What they enforce is what the server says.

One connection a backend; when it breaks, all its sandboxes are lost, here and there. A backend belongs to one event
loop. The wire is in `link`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from temper.core import errors
from temper.core.blame import FaultError
from temper.core.errors import ConfigError, MissingError, RefusedError
from temper.core.protocols import Enforcement
from temper.core.task import SandboxSpec
from temper.core.trace import Exit
from temper.sandboxes import link, local

PORT = 7411
OPEN_DOORS = local.OPEN_DOORS  # where the server says that the limits behind them are not hard
_CONNECT = 10.0
_GRACE = 60.0  # seconds beyond a call's own limit until the server counts as lost


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`key_file` holds the key that the server was given, `certificate` (PEM) what its own is verified against: itself,
    or authorities. Neither is needed on this machine's loopback."""

    address: str = f"127.0.0.1:{PORT}"
    key_file: str = ""
    certificate: str = ""


def create(config: Config | None = None) -> Backend:
    """Raises RefusedError when no server answers there, or when it does not know our key."""
    return Backend(config or Config())


def read_key(path: str) -> bytes:
    """Raises MissingError, ConfigError."""
    if not path:
        return b""
    if not Path(path).is_file():
        raise MissingError(f"no key at {path}: make one with `openssl rand -hex 32 > {path}; chmod 600 {path}`")
    if (mode := Path(path).stat().st_mode & 0o777) & 0o077:
        raise ConfigError(
            f"the key in {path} may be read by others (mode {mode:o}): `chmod 600 {path}`, or make a new one"
        )
    key = Path(path).read_bytes().strip()
    if len(key) < 32:
        raise ConfigError(f"the key in {path} has {len(key)} characters, expected 32 or more")
    return key


class Backend:
    """See `core.protocols.SandboxBackend`. Connects when first used; what the server enforces is asked at once."""

    def __init__(self, config: Config) -> None:
        host, _, port = config.address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"sandboxes remote: expected an address like 10.0.0.5:{PORT}, got {config.address!r}")
        self._host, self._port, self._key = host.strip("[]"), int(port), read_key(config.key_file)
        self._tls = link.tls_of(config.certificate)
        link.guard(self._host, self._port, self._key, self._tls, "key_file and certificate")
        self._link: link.Link | None = None
        self._listener: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[link.Answer]] = {}
        self._connecting = asyncio.Lock()
        self._capabilities: Mapping[str, Enforcement] = {}
        self.lost = ""
        with ThreadPoolExecutor(1) as asking:  # the caller may be in an event loop, or have none yet
            asking.submit(asyncio.run, self._ask()).result()

    def capabilities(self) -> Mapping[str, Enforcement]:
        return self._capabilities

    async def open(self, spec: SandboxSpec) -> Remote:
        async with self._connecting:
            if self._link is None and not self.lost:
                self._link = await self._connect()
                self._listener = asyncio.create_task(self._listen(self._link))
        (box,) = await self.call("", "open", spec)
        return box

    async def close(self) -> None:
        self._lose("the backend is closed")
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    async def call(self, box: str, method: str, *given: Any, seconds: float = 0.0) -> Any:
        """What the method gives, or raises, over there. A call that is cancelled here is cancelled there."""
        if self.lost or self._link is None:
            raise self._fault()
        number = next(self._numbers)
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(number, box, method, *given)
            async with asyncio.timeout(seconds + _GRACE):
                await self._link.drain()
                answer: link.Answer = await waiting
            result = msgspec.msgpack.decode(answer.result, type=link.METHODS[method][1])
        except (TimeoutError, ConnectionError, msgspec.MsgspecError) as error:
            self._lose(str(error) or f"waited {seconds + _GRACE:.0f} s for {method}")
            raise self._fault() from error
        except asyncio.CancelledError:
            waiting.cancel()
            if waiting.cancelled():
                self._send(0, "", "cancel", number)
            elif waiting.exception() is None:  # it came at that very moment
                self._disown(waiting.result())
            raise
        finally:
            del self._waiting[number]
        if answer.failed is not None:
            raise _error(*answer.failed)
        if method not in link.OPENING:
            return result
        kind = Remote if self._capabilities.get("snapshots", "none") == "none" else RemoteSnapshots
        return [kind(self, name) for name in answer.opened]

    def _send(self, number: int, box: str, method: str, *given: Any) -> None:
        assert self._link is not None
        self._link.send(link.Call(number, box, method, msgspec.Raw(msgspec.msgpack.encode(given))))

    def _disown(self, answer: link.Answer) -> None:
        """Nobody waits for it any more: what it opened is closed."""
        for orphan in answer.opened:
            self._send(next(self._numbers), orphan, "close")

    async def _ask(self) -> None:
        try:
            (await self._connect()).close()
        except FaultError as error:
            raise RefusedError(error.fault.detail) from error

    async def _connect(self) -> link.Link:
        try:
            async with asyncio.timeout(_CONNECT):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
                try:
                    proven = await link.greet(reader, writer, self._key, client=True)
                    hello: link.Answer = await proven.receive(link.Answer)
                    offered = msgspec.msgpack.decode(hello.result, type=dict[str, Enforcement])
                    self._capabilities = {**offered, "sessions": "none"}  # the wire has no turns
                    return proven
                except BaseException:
                    writer.transport.abort()
                    raise
        except (OSError, TimeoutError, msgspec.MsgspecError) as error:
            self.lost = f"no sandboxes at {self._host}:{self._port} ({error}): does `temper sandbox serve` run there?"
            raise self._fault() from error

    async def _listen(self, proven: link.Link) -> None:
        try:
            while True:
                answer: link.Answer = await proven.receive(link.Answer)
                waiting = self._waiting.get(answer.number)
                if waiting is None or waiting.done():
                    self._disown(answer)
                else:
                    waiting.set_result(answer)
        except OSError as error:
            self._lose(f"the connection broke: {error}")

    def _lose(self, why: str) -> None:
        self.lost = self.lost or why
        if self._link is not None:
            self._link.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._fault())

    def _fault(self) -> FaultError:
        return FaultError("backend-lost", f"remote {self._host}", self.lost or "not connected")


def _error(kind: str, text: str, more: str | int) -> Exception:
    if kind == "fault":
        return FaultError(str(more), "remote", text)
    if kind == "os":
        return OSError(int(more), text)
    known = getattr(errors, kind, None)
    return known(text) if isinstance(known, type) and issubclass(known, errors.TemperError) else ValueError(text)


class Remote:
    """One sandbox. See `core.protocols.Sandbox`."""

    def __init__(self, backend: Backend, name: str) -> None:
        self.id = name
        self.capabilities = backend.capabilities()
        self._backend = backend
        self._closed = False

    async def exec(
        self, argv: Sequence[str], *, stdin: bytes = b"", seconds: float = 10.0, env: Mapping[str, str] | None = None
    ) -> Exit:
        given = (list(argv), stdin, seconds, dict(env or {}))
        return await self._backend.call(self.id, "exec", *given, seconds=seconds)

    async def put(self, path: str, content: bytes) -> None:
        await self._backend.call(self.id, "put", path, content)

    async def get(self, path: str) -> bytes:
        return await self._backend.call(self.id, "get", path)

    async def close(self) -> None:
        """When the connection is lost, the server closes what it held."""
        if not self._closed and not self._backend.lost:
            self._closed = True
            await self._backend.call(self.id, "close")


class RemoteSnapshots(Remote):
    """One that can snapshot over there. See `core.protocols.Snapshots`."""

    async def snapshot(self) -> str:
        return await self._backend.call(self.id, "snapshot")

    async def rollback(self, snapshot: str) -> None:
        await self._backend.call(self.id, "rollback", snapshot)

    async def fork(self, snapshot: str, n: int) -> list[Remote]:
        return await self._backend.call(self.id, "fork", snapshot, n)
