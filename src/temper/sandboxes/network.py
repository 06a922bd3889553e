"""The way out of a sandbox: a proxy on the host that lets a sandbox reach the hosts on its list, and nothing else.

A sandbox has an empty network namespace. Its helper opens a listening socket on the namespace's loopback and hands it
to the owner, who serves it here: what connects inside is answered outside, and there is no other way. The proxy speaks
HTTP: CONNECT, and plain requests, one a connection. It resolves names itself and connects to the address that it has
checked, so that a name cannot come to mean another address in between; private, loopback and link-local addresses (a
cloud's metadata service, say) are refused unless that very address is on the list. What it does not see is what is said
inside TLS: a host that serves many sites behind one name opens all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Coroutine, Sequence

from temper.core.errors import ConfigError

PORT = 3128  # on the sandbox's loopback
CONNECTIONS = 64  # of one sandbox at once
HEAD_SIZE = 16 << 10
SECONDS = 15.0  # for a head to come, for a connection, for the last bytes to go
_PLAIN_PORTS = (80, 443)  # of an entry that names none
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "upgrade", "host"}


class RefusalError(Exception):
    """Why a request is not served, with the status of the answer."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


def environment() -> dict[str, str]:
    """What programs in the sandbox need to know."""
    address, local = f"http://127.0.0.1:{PORT}", "localhost,127.0.0.1,::1"
    names = {"HTTP_PROXY": address, "HTTPS_PROXY": address, "NO_PROXY": local}
    return names | {name.lower(): value for name, value in names.items()}


def parse(allowed: Sequence[str]) -> set[tuple[str, int]]:
    """Hosts and ports of entries host, host:port, address, [v6 address]:port. Raises ConfigError."""
    found: set[tuple[str, int]] = set()
    for entry in allowed:
        try:
            host, port = _split(entry)
        except ValueError:
            raise ConfigError(f"network: expected host or host:port, got {entry!r}") from None
        found |= {(host, number) for number in ((port,) if port else _PLAIN_PORTS)}
    return found


class Proxy:
    """Serves one sandbox's listening socket until it is closed."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = parse(allowed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def serve(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        try:
            self._server = await asyncio.start_server(self._accepted, sock=listening, limit=HEAD_SIZE)
        except BaseException:
            listening.close()
            raise

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- one connection ----

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.closing(writer):
            try:
                if len(self._tasks) > CONNECTIONS:
                    raise RefusalError("503 Service Unavailable", f"more than {CONNECTIONS} connections at once")
                await self._answer(reader, writer)
            except RefusalError as refusal:
                body = f"temper: {refusal}\n".encode()
                head = f"HTTP/1.1 {refusal.status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                pass  # one of the two ends has gone
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.drain(), SECONDS)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(SECONDS):
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
            except (asyncio.LimitOverrunError, UnicodeDecodeError):
                raise RefusalError("400 Bad Request", "expected a request's head in ASCII, of 16 KiB at most") from None
        first, *lines = head[:-4].split("\r\n")
        if not all(line.replace("\t", " ").isprintable() and line[:1] not in " \t" for line in (first, *lines)):
            raise RefusalError("400 Bad Request", "expected one header field a line, without control characters")
        method, _, rest = first.partition(" ")
        target, _, version = rest.partition(" ")
        if not version.startswith("HTTP/1."):
            raise RefusalError("400 Bad Request", "expected an HTTP/1.1 request")
        if method == "CONNECT":
            there, back = await self._connect(target, None)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with contextlib.closing(back):
                await _exchange(_copy(reader, back), _copy(there, writer))
        else:
            await self._plain(method, target, lines, reader, writer)

    async def _plain(
        self, method: str, target: str, lines: list[str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """One request and its answer. The Host line is ours, so that it names what was checked."""
        scheme, _, rest = target.partition("://")
        if scheme.lower() != "http" or not rest:
            raise RefusalError("400 Bad Request", "expected CONNECT host:port, or a request for http://...")
        authority, _, path = rest.partition("/")
        fields = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        sizes = {value for name, value in fields if name == "content-length"}
        encoded = any(name == "transfer-encoding" for name, _ in fields)
        if encoded or len(sizes) > 1 or not all(size.isdigit() for size in sizes):
            raise RefusalError("411 Length Required", "expected a body with one Content-Length")
        there, back = await self._connect(authority, 80)
        kept = [f"{name}: {value}" for name, value in fields if name not in _HOP_BY_HOP]
        back.write("\r\n".join([f"{method} /{path} HTTP/1.1", f"Host: {authority}", *kept]).encode())
        back.write(b"\r\nConnection: close\r\n\r\n")
        with contextlib.closing(back):
            await _exchange(_copy(reader, back, int(next(iter(sizes), "0"))), _copy(there, writer))

    async def _connect(self, authority: str, port: int | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To an address that the list allows. Raises RefusalError."""
        try:
            host, number = _split(authority)
        except ValueError:
            raise RefusalError("400 Bad Request", f"expected host:port, got {authority!r}") from None
        port = number or port
        if port is None or (host, port) not in self._allowed:
            raise RefusalError("403 Forbidden", f"{authority} is not on this sandbox's list (SandboxSpec.network)")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SECONDS):
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses = [address for where in found if self._may(address := str(where[4][0]), port)]
                if not addresses:
                    raise RefusalError("403 Forbidden", f"{host} has no public address, nor one that the list names")
                return await asyncio.open_connection(addresses[0], port, limit=HEAD_SIZE)
        except (OSError, TimeoutError) as error:
            raise RefusalError("502 Bad Gateway", f"{authority}: {error or 'no answer in time'}") from None

    def _may(self, address: str, port: int) -> bool:
        """Is it a public address, or one that is on the list itself?"""
        found = _meant(ipaddress.ip_address(address.partition("%")[0]))
        return (str(found), port) in self._allowed or (found.is_global and not found.is_multicast)


def _meant(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address inside a mapped, 6to4 or NAT64 one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    nat64 = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else None
    return address.ipv4_mapped or address.sixtofour or nat64 or address


def _split(text: str) -> tuple[str, int | None]:
    """Host (lower case; an address in its usual form) and port. Raises ValueError."""
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        host = str(ipaddress.IPv6Address(host))
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(text)
        port = rest[1:]
    else:
        host, _, port = text.partition(":")
        host = host.lower().removesuffix(".")
        if not host or not all(c.isalnum() or c in "-._" for c in host) or not host.isascii():
            raise ValueError(text)
    if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(text)
    return host, int(port) if port else None


async def _exchange(up: Coroutine[None, None, None], down: Coroutine[None, None, None]) -> None:
    """Both at once, until the answer ends. The sandbox's life is the limit."""
    sending = asyncio.create_task(up)
    try:
        await down
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, to: asyncio.StreamWriter, left: int | None = None) -> None:
    """Bytes as they come, until the end, which the other side is told, or until `left` are copied."""
    while left is None or left > 0:
        data = await source.read(min(left or 1 << 16, 1 << 16))
        if not data:
            break
        left = left and left - len(data)
        to.write(data)
        await to.drain()
    if left is None and to.can_write_eof():
        to.write_eof()
