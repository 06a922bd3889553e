"""Records to bytes and back: msgpack by msgspec, with numpy arrays as (dtype, shape, bytes).

Strict when reading: a record has the type that was asked for, and an array only a plain numeric dtype whose size
matches its bytes; nothing is ever unpickled. Fields that a newer writer added are ignored, fields that an older one did
not know take their defaults. An array inside an untyped field (`Event.data`) comes back as that triple.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any, TypeVar

import msgspec
import numpy as np

T = TypeVar("T")


def encode(record: Any) -> bytes:
    """Raises TypeError for a value that is neither plain data, a Struct, nor a numeric array."""
    return _encoder().encode(record)


def decode(content: bytes, kind: type[T]) -> T:
    """Raises msgspec.DecodeError (of which ValidationError is one) when `content` is no record of `kind`."""
    return _decoder(kind)(content)


@cache
def _encoder() -> msgspec.msgpack.Encoder:
    return msgspec.msgpack.Encoder(enc_hook=_plain)


@cache
def _decoder(kind: type[T]) -> Callable[[bytes], T]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_restore).decode


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return value.dtype.str, value.shape, value.tobytes()
    raise TypeError(f"a record holds plain data and numeric arrays, got {getattr(value, 'dtype', type(value))}")


def _restore(kind: type, value: Any) -> Any:
    """Errors of this hook reach the caller as msgspec.ValidationError, with the field's path."""
    if kind is not np.ndarray:
        raise ValueError(f"no record holds a {kind.__name__}")
    try:
        name, shape, content = msgspec.convert(value, tuple[str, tuple[int, ...], bytes])
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError) as error:
        raise ValueError(f"expected (dtype, shape, bytes): {error}") from None
    if dtype.kind not in "biuf":
        raise ValueError(f"expected a numeric dtype, got {name!r}")
    if min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"expected {shape} of {name}, got {len(content)} bytes")
    return np.frombuffer(content, dtype).reshape(shape).copy()  # a copy, because that is writable
