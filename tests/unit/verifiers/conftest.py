"""One pool for the tests of a module; tasks and traces in one line."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
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
