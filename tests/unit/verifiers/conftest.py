"""One pool for the tests of a module; tasks and traces in one line."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from temper.core.protocols import Verifier
from temper.core.task import Message, SandboxSpec, Task
from temper.core.trace import Segment, Trace, Verdict
from temper.verifiers.grading import grade
from temper.verifiers.pool import Pool


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in its own thread, as a driver would have it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def pool(loop: asyncio.AbstractEventLoop) -> Iterator[Pool]:
    pool = Pool(workers=2)
    asyncio.run_coroutine_threadsafe(pool.__aenter__(), loop).result()
    yield pool
    asyncio.run_coroutine_threadsafe(pool.__aexit__(), loop).result()


@pytest.fixture(scope="module")
def judged(loop: asyncio.AbstractEventLoop) -> Callable[..., Verdict]:
    """judged(verifier, reference, answer, delivered artifacts, more of the task): the verdict."""

    def run(
        verifier: Verifier, reference: Any, answer: str = "", delivered: Mapping[str, bytes] | None = None, **task: Any
    ) -> Verdict:
        asked = Task(id="t", domain="d", messages=(Message("user", "?"),), reference=reference, **task)
        said = Segment.given((Message("assistant", answer),), [])
        trace = Trace(id="x", task="t", domain="d", seed=0, segments=(said,))
        return asyncio.run_coroutine_threadsafe(grade(asked, trace, delivered or {}, verifier), loop).result()

    return run


@pytest.fixture
def workspace() -> SandboxSpec:
    return SandboxSpec(files={"m.py": b"def f(x):\n    return 0\n", "README": b"fix f"})


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """copied(name of a plugin's module): the name of its copy in a package of this test, where its card may lie."""

    def copy(name: str) -> str:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        package = tmp_path / f"copied_{tmp_path.name}"  # a name of its own, because modules are kept by name
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        shutil.copy(spec.origin, package)
        monkeypatch.syspath_prepend(str(tmp_path))
        return f"{package.name}.{name.rpartition('.')[2]}"

    return copy
