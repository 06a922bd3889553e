"""Between `remote` and `serve`: calls and answers, framed, and sealed with a shared key.

Both ends prove that they know the key by answering the other's random challenge; it never crosses the wire. From then
on each frame carries a keyed hash over its place in the stream, so that whoever sits in between can neither forge,
repeat, drop nor reorder. He can read: over a network that is not yours, use a tunnel (ssh, WireGuard).
Messages are msgpack of the types below, decoded strictly; nothing else is accepted.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import struct
from typing import Any

import msgspec
from msgspec import Raw, Struct

from temper.core.task import SandboxSpec

LARGEST = 256 << 20  # bytes of one message
NOTHING = Raw(msgspec.msgpack.encode(None))
GIVEN: dict[str, Any] = {  # what a call carries, by method; all but `open` and `cancel` are those of a sandbox
    "open": tuple[SandboxSpec],
    "exec": tuple[list[str], bytes, float, dict[str, str]],
    "put": tuple[str, bytes],
    "get": tuple[str],
    "snapshot": tuple[()],
    "rollback": tuple[str],
    "fork": tuple[str, int],
    "close": tuple[()],
    "cancel": tuple[int],  # the number of a call that nobody waits for any more; has no answer
}
_HEAD = struct.Struct("!I")
_CHALLENGE, _SEAL = 32, 16


class Call(Struct, frozen=True):
    number: int
    box: str
    method: str
    given: Raw


class Opened(Struct, frozen=True):
    box: str
    snapshots: bool


class Answer(Struct, frozen=True):
    """`failed`: (kind, text, a word of the blame table or an errno); kinds: fault, refused, os, wrong."""

    number: int
    result: Raw = NOTHING
    opened: list[Opened] = []
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
