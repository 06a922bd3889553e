"""Tasks of other formats: a module a format, each `create(config)` giving a `core.protocols.Importer`.

Here is what they share: typed records from foreign trees. What a record's type does not name is not dropped in silence
but listed, for `loss`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from temper.core.errors import ConfigError

T = TypeVar("T", bound=Struct)


def record(kind: type[T], tree: Any, where: str) -> T:
    """Raises ConfigError with `where` (a file, or a file and a line) and the path of the value in it."""
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None


def unread(found: Struct, tree: dict[str, Any], at: str = "") -> Iterator[tuple[str, Any]]:
    """Key paths of `tree` that `found` has no field for, and their values; empty and zero ones say nothing."""
    for key, value in tree.items():
        if key not in found.__struct_fields__:
            if value not in (0, "", [], {}, None):
                yield at + key, value
        elif isinstance(inner := getattr(found, key), Struct):
            yield from unread(inner, value, f"{at}{key}.")
