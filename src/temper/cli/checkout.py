"""What only a checkout of the project has, and its wheel has not: contract suites and benchmarks, loaded by place."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from temper.core.errors import MissingError


def place(*parts: str) -> Path:
    """A file or folder of the checkout. Raises MissingError where there is none."""
    path = Path(__file__).parents[3].joinpath(*parts)
    if not path.exists():
        raise MissingError(f"{'/'.join(parts)} is in a checkout of the project, not in its wheel: clone it, run there")
    return path


def module(name: str, path: Path) -> ModuleType:
    """The module, or the package where that is a folder, at `path`; loaded once, as `name`."""
    if name not in sys.modules:
        within = [str(path)] if path.is_dir() else None
        source = path / "__init__.py" if within else path
        spec = importlib.util.spec_from_file_location(name, source, submodule_search_locations=within)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
