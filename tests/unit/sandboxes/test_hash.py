"""The helper's BLAKE2b (`native/hash.c`) against Python's, which is the reference implementation of RFC 7693."""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "native" / "hash.c"


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("native") / "hash.so"
    compiler = os.environ.get("CC", "cc").split()
    subprocess.run([*compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
    return ctypes.CDLL(str(library))


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 255, 256, 257, 5000])
def test_it_is_blake2b_whatever_the_pieces(native: ctypes.CDLL, size: int) -> None:
    rng = random.Random(size)
    data = rng.randbytes(size)
    state, found = ctypes.create_string_buffer(1024), ctypes.create_string_buffer(32)
    for cut in (0, 1, size // 3, size // 2):
        begin, rest = data[:cut], data[cut:]
        native.hash_begin(state)
        native.hash_add(state, begin, ctypes.c_size_t(len(begin)))
        native.hash_add(state, rest, ctypes.c_size_t(len(rest)))
        native.hash_end(state, found)
        assert found.raw == hashlib.blake2b(data, digest_size=32).digest()
