"""Episodes with what the assistant says written down, through the real environment, sandbox and verifier."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from temper.core import registry
from temper.core.protocols import Domain, Resources
from temper.core.task import Message, Task
from temper.core.trace import Segment, Trace, Verdict
from temper.verifiers.grading import grade
from temper.verifiers.pool import Pool

Say = Callable[[Domain, Task, Sequence[Message]], tuple[list[str], Verdict]]


@pytest.fixture(scope="module")
def say() -> Iterator[Say]:
    """say(domain, task, messages): what the tools answered, and the verdict."""
    with asyncio.Runner() as runner:
        module, config = registry.configure("sandboxes", "local")
        backend = module.create(config)
        pool = Pool(workers=1)
        runner.run(pool.__aenter__())

        async def go(domain: Domain, task: Task, script: Sequence[Message]) -> tuple[list[str], Verdict]:
            environment = domain.environment(task, Resources(backend, time.monotonic, random.Random(0)))
            await environment.start()
            outputs = [m.content for message in script for m in (await environment.step(message)).messages]
            artifacts = await environment.artifacts()
            await environment.close()
            trace = Trace(
                id="t", task=task.id, domain=task.domain, seed=0, segments=(Segment.given(tuple(script), []),)
            )
            name, settings = domain.verifier(task)
            module, config = registry.configure("verifiers", {"kind": name, **settings})
            return outputs, await grade(task, trace, artifacts, module.create(config, pool, backend))

        yield lambda domain, task, script: runner.run(go(domain, task, script))
        runner.run(pool.__aexit__(None, None, None))
        runner.run(backend.close())
