"""One append-only file of records: framed, checksummed, readable by other processes while it is written.

A file is MAGIC and then frames: length, crc32 of the payload, crc32 of those two, payload (`store.codec`).
Every append has reached the operating system when it returns, so it survives `kill -9`; `sync` waits for the disk.
What a crash or a full disk leaves at the end, an unfinished frame, is skipped by readers and cut off by the next
writer, which tells in `torn` how many bytes that were. A damaged frame with others behind it is a CorruptError.
One writer at a time is the caller's duty (`store.run` holds the lock).
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from temper.core.errors import BackendError, CorruptError
from temper.store import codec
from temper.store.disk import disk_errors

T = TypeVar("T")

MAGIC = b"TEMPER1\n"
_HEADER = struct.Struct("<III")  # payload length, crc32 of the payload, crc32 of these eight bytes


class Log(Generic[T]):
    """Records of one type in one file. Appending is safe from several threads of the writer."""

    def __init__(self, path: Path, kind: type[T], *, writable: bool = False) -> None:
        """Raises CorruptError when `writable` and the file is damaged before its end."""
        self.path = path
        self.torn = 0
        self._kind = kind
        self._fd = -1
        self._lock = threading.Lock()
        if writable:
            self._open()

    def append(self, record: T | msgspec.Raw) -> None:
        """A `msgspec.Raw` is a record that is encoded already.

        Raises BackendError when the disk does not take it; the log then is as it was before.
        """
        payload = codec.encode(record)
        start = struct.pack("<II", len(payload), zlib.crc32(payload))
        with self._lock:
            self._write(start + struct.pack("<I", zlib.crc32(start)) + payload)

    def __iter__(self) -> Iterator[T]:
        """All records that are complete now."""
        for record, _ in self._records(0):
            yield record

    def tail(self, offset: int = 0) -> tuple[list[T], int]:
        """Records from `offset` on, and the offset to give next time. Begin with 0."""
        found = list(self._records(offset))
        return [record for record, _ in found], found[-1][1] if found else offset

    def sync(self) -> None:
        with self._lock, disk_errors(self.path):
            if self._fd >= 0:
                os.fsync(self._fd)

    def close(self) -> None:
        self.sync()
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _open(self) -> None:
        with disk_errors(self.path):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._end = max((end for _, end in _frames(self.path, 0)), default=len(MAGIC))
            size = os.fstat(self._fd).st_size
            if size < len(MAGIC):
                self._end = 0
                self._write(MAGIC)
            self.torn = max(0, size - self._end)
            os.ftruncate(self._fd, self._end)
        except BaseException:
            os.close(self._fd)
            self._fd = -1
            raise

    def _write(self, content: bytes) -> None:
        if self._fd < 0:
            raise BackendError(f"{self.path} is open for reading only: only the process that runs it may write")
        with disk_errors(self.path, len(content)):
            try:
                done = 0
                while done < len(content):
                    done += os.pwrite(self._fd, memoryview(content)[done:], self._end + done)
                self._end += done
            except BaseException:  # a full disk, or Ctrl-C between two writes: take back what was written of it
                os.ftruncate(self._fd, self._end)
                raise

    def _records(self, offset: int) -> Iterator[tuple[T, int]]:
        at = max(offset, len(MAGIC))
        for payload, end in _frames(self.path, offset):
            try:
                yield codec.decode(payload, self._kind), end
            except msgspec.DecodeError as error:
                raise CorruptError(f"{self.path} at byte {at}: no {self._kind.__name__}: {error}") from None
            at = end


def verify(path: Path) -> None:
    """Check every frame of a log; another kind of file passes. Raises CorruptError."""
    with path.open("rb") as file:
        ours = file.read(len(MAGIC)) == MAGIC
    for _ in _frames(path, 0) if ours else ():
        pass


def _frames(path: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """Complete payloads from `offset` on, each with the offset behind it; ends at a torn tail. Raises CorruptError."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        magic = file.read(len(MAGIC))
        if not MAGIC.startswith(magic):
            raise CorruptError(f"{path} is no log of this version: expected {MAGIC!r} at its start, got {magic!r}")
        offset = max(offset, len(MAGIC))
        file.seek(offset)
        while len(header := file.read(_HEADER.size)) == _HEADER.size:
            length, crc, check = _HEADER.unpack(header)
            if zlib.crc32(header[:8]) != check:
                if any(header) or any(file.read()):  # zeros to the end are blocks that the disk never got
                    raise CorruptError(_damaged(path, offset))
                return
            payload = file.read(length)
            end = offset + _HEADER.size + length
            if len(payload) < length:
                return  # a writer may be about to write the rest
            if zlib.crc32(payload) != crc:
                if end < os.fstat(file.fileno()).st_size:
                    raise CorruptError(_damaged(path, offset))
                return
            yield payload, end
            offset = end


def _damaged(path: Path, offset: int) -> str:
    return (
        f"{path} is damaged at byte {offset}: a checksum does not match. "
        f"Restore the file from a copy, or keep what is before that with `truncate -s {offset} {path}`"
    )
