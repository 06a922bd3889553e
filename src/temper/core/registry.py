"""Name is path: a plugin is a module, found by the name of its room and its own name.

`find("sandboxes", "local")` looks among the modules of `temper.sandboxes`, those of every package listed under the
entry-point group `temper.sandboxes`, and dotted paths ("my_package.my_sandbox"). A module counts as a plugin when it
defines its room's entry (`ENTRY`) at top level; that is read from its source, so that listing imports nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from temper.core import config as configs
from temper.core.errors import ConfigError, MissingError, nearest

ENTRY = {
    "sandboxes": "create",
    "engines": "create",
    "verifiers": "create",
    "domains": "create",
    "importers": "create",
    "store.sinks": "create",
    "scheduling.executors": "create",
    "models.chat": "create",
    "training.algorithms": "advantages",
    "training.losses": "loss",
    "runs.stages": "run",
}


@cache
def names(room: str) -> dict[str, str]:
    """Plugins of a room: name to dotted module path. Nothing is imported but the packages that hold them."""
    entry = re.compile(rf"^(?:async )?(?:def|class) {ENTRY[room]}\b|^{ENTRY[room]}\s*[:=]", re.M)
    found: dict[str, str] = {}
    packages = [f"temper.{room}"]
    packages += [point.value for point in metadata.entry_points(group=f"temper.{room}")]
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None:
            raise MissingError(f"entry point temper.{room} names {package}, which cannot be imported")
        for folder in spec.submodule_search_locations or ():
            for path in sorted(Path(folder).iterdir()):
                source = path / "__init__.py" if path.is_dir() else path
                name = path.stem
                if source.suffix != ".py" or name.startswith("_") or not source.exists():
                    continue
                if not entry.search(source.read_text("utf-8")):
                    continue
                if name in found:
                    raise ConfigError(f"two plugins of {room} are called {name!r}: {found[name]} and {package}.{name}")
                found[name] = f"{package}.{name}"
    return found


def find(room: str, name: str) -> ModuleType:
    """The plugin module. Raises MissingError with the nearest names; a broken plugin raises its own error."""
    if room not in ENTRY:
        raise MissingError(f"no kind of plugin is called {room!r}; {nearest(room, ENTRY)}")
    known = names(room)
    path = known.get(name.replace("-", "_")) or (name if "." in name else None)
    if path is None:
        raise MissingError(f"no plugin of {room} is called {name!r}; {nearest(name, known)}")
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if path == name and error.name and path.startswith(error.name):
            raise MissingError(f"no plugin of {room} at {name!r}: {error}") from None
        raise
    if not hasattr(module, ENTRY[room]):
        raise ConfigError(f"{path} is no plugin of {room}: it defines no {ENTRY[room]!r}")
    return module


def configure(room: str, table: Mapping[str, Any] | str) -> tuple[ModuleType, Any]:
    """A plugin and its typed settings from a table with `kind` (or just the kind).

    Gives (module, module.Config(...)), or None for a module without `Config`.
    """
    settings = {"kind": table} if isinstance(table, str) else dict(table)
    kind = settings.pop("kind", None)
    if not isinstance(kind, str):
        raise ConfigError(f"{room}: expected a table with a key 'kind'; {nearest('', names(room))}")
    module = find(room, kind)
    config = getattr(module, "Config", None)
    if config is None and settings:
        raise ConfigError(f"{room} {kind!r} takes no settings, got {', '.join(settings)}")
    return module, config and configs.build(config, settings, f"{room} {kind}")
