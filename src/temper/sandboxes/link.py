"""Between `remote` and `serve`: calls and answers, framed, and sealed with a shared key.

Both ends prove that they know the key by answering the other's random challenge; it never crosses the wire. From then
on each frame carries a keyed hash over its place in the stream, so that whoever sits in between can neither forge,
repeat, drop nor reorder. So that he cannot read either, TLS is around it wherever the address is not loopback.
Messages are msgpack of the types below, decoded strictly; nothing else is accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import secrets
import ssl
import struct
from typing import Any

import msgspec
from msgspec import Raw, Struct

from temper.core.errors import ConfigError
from temper.core.task import SandboxSpec
from temper.core.trace import Exit

LARGEST = 256 << 20  # bytes of one message
NOTHING = Raw(msgspec.msgpack.encode(None))
METHODS: dict[str, tuple[Any, Any]] = {  # what a call carries, and gives; all but `open` and `cancel` are a sandbox's
    "open": (tuple[SandboxSpec], None),
    "exec": (tuple[list[str], bytes, float, dict[str, str]], Exit | None),
    "put": (tuple[str, bytes], None),
    "get": (tuple[str], bytes | None),
    "snapshot": (tuple[()], str | None),
    "rollback": (tuple[str], None),
    "fork": (tuple[str, int], None),
    "close": (tuple[()], None),
    "cancel": (tuple[int], None),  # the number of a call that nobody waits for any more; has no answer
}
OPENING = ("open", "fork")  # whose answers are new sandboxes
_HEAD = struct.Struct("!I")
_CHALLENGE, _SEAL = 32, 16


class Call(Struct, frozen=True):
    number: int
    box: str
    method: str
    given: Raw


class Answer(Struct, frozen=True):
    """`opened`: names of new sandboxes. `failed`: (kind, text, a word of the blame table or an errno); kinds: fault,
    os, wrong (a value), and the names of `core.errors`."""

    number: int
    result: Raw = NOTHING
    opened: list[str] = []
    failed: tuple[str, str, str | int] | None = None


class Link:
    """A connection whose ends have proved themselves. Raises ConnectionError for anything out of form."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, client: bool) -> None:
        self._reader, self._writer, self._key = reader, writer, key
        self._sent, self._received = (0, 1) if client else (1, 0)  # each direction counts in steps of two

    def send(self, message: Struct) -> None:
        payload = msgspec.msgpack.encode(message)
        self._sent += 2
        self._writer.write(_HEAD.pack(len(payload)) + self._seal(self._sent, payload) + payload)

    async def drain(self) -> None:
        await self._writer.drain()

    async def receive(self, kind: Any) -> Any:
        try:
            (size,) = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            if size > LARGEST:
                raise ConnectionError(f"a message of {size} bytes, {LARGEST} are the most")
            seal, payload = await self._reader.readexactly(_SEAL), await self._reader.readexactly(size)
            self._received += 2
            if not hmac.compare_digest(seal, self._seal(self._received, payload)):
                raise ConnectionError("a message whose seal is wrong")
            return msgspec.msgpack.decode(payload, type=kind)
        except (asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
            raise ConnectionError(str(error)) from error

    def close(self) -> None:
        self._writer.transport.abort()

    def _seal(self, place: int, payload: bytes) -> bytes:
        return hashlib.blake2b(struct.pack("!Q", place) + payload, key=self._key, digest_size=_SEAL).digest()


def guard(host: str, port: int, key: bytes, tls: ssl.SSLContext | None, give: str) -> None:
    """Beyond loopback both are needed; `give` says how. Raises ConfigError."""
    if not 0 <= port < 1 << 16:
        raise ConfigError(f"expected a port in 0..65535, got {port}")
    loopback = host == "localhost"
    with contextlib.suppress(ValueError):  # a name
        loopback = ipaddress.ip_address(host).is_loopback
    if not loopback and not (key and tls):
        missing = "a certificate" if key else "a key" if tls else "a key and a certificate"
        raise ConfigError(
            f"{host} is not loopback, so that sandboxes there need {missing}: {give}; or use a tunnel to loopback"
        )


def tls_of(certificate: str, private: str = "") -> ssl.SSLContext | None:
    """A server's with its private key, else that of a client who trusts `certificate` (its own, or a bundle of
    authorities). None without a certificate. Raises ConfigError."""
    if not certificate:
        return None
    try:
        if private:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, private)
        else:
            context = ssl.create_default_context(cafile=certificate)
    except OSError as error:  # ssl's own errors are some, too
        raise ConfigError(
            f"expected a certificate and its key (PEM) in {certificate} {private}, got: {error}. To make them: openssl "
            "req -x509 -newkey rsa:3072 -nodes -days 365 -subj /CN=sandboxes -addext subjectAltName=IP:ADDRESS "
            "-keyout tls.key -out tls.crt"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, *, client: bool) -> Link:
    """Both ends send a challenge, then the proof that they know the key. Raises PermissionError, ConnectionError."""
    mine = secrets.token_bytes(_CHALLENGE)
    names = (b"client", b"server") if client else (b"server", b"client")
    writer.write(mine)
    try:
        theirs = await reader.readexactly(_CHALLENGE)
        both = mine + theirs if client else theirs + mine
        writer.write(hmac.digest(key, names[0] + both, "sha256"))
        shown = await reader.readexactly(_CHALLENGE)
    except asyncio.IncompleteReadError as error:
        raise ConnectionError("the other end hung up: is the key right?") from error
    if not hmac.compare_digest(shown, hmac.digest(key, names[1] + both, "sha256")):
        raise PermissionError("the other end does not know the key")
    return Link(reader, writer, hmac.digest(key, b"session" + both, "sha256"), client)
