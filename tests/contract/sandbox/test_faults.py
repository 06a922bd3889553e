"""Our own faults, injected at every step, never surface as a score.

A right answer is played through environment, sandbox and verifier while something of ours is killed or refused. What
may come out is a mask, or the full score where the fault came too late to matter; never a graded zero.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from temper.core import registry
from temper.core.blame import TABLE, FaultError
from temper.core.errors import BackendError
from temper.core.protocols import Resources, SamplingParams, Sandbox
from temper.core.task import SandboxSpec
from temper.core.trace import Verdict
from temper.domains import code_repair
from temper.engines.scripted import ScriptedChat
from temper.models.chat import ChatFormat
from temper.models.load import load
from temper.rollouts.episode import run_episode
from temper.sandboxes import local
from temper.sandboxes.zygote import Zygote
from temper.verifiers.grading import grade

ROOT = Path(__file__).parents[3]


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


VICTIMS: dict[str, Callable[[int], list[int]]] = {
    "launcher": lambda launcher: [launcher],
    "boxes": children,
    "commands": lambda launcher: [pid for box in children(launcher) for pid in children(box)],
}


class Sabotaged:
    """A local backend in which the victims are killed in the nth call of a sandbox or of `open`, shortly after its
    beginning. `calls` counts on when nothing is left to kill."""

    def __init__(self, victims: Callable[[int], list[int]], at: int, after: float) -> None:
        self.inner = local.create()
        self.victims, self.at, self.after = victims, at, after
        self.calls = 0

    async def call(self, work: Awaitable[Any]) -> Any:
        self.calls += 1
        if self.calls - 1 != self.at:
            return await work
        running = asyncio.ensure_future(work)
        await asyncio.sleep(self.after)
        for pid in self.victims(self.inner.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return await running

    async def open(self, spec: SandboxSpec) -> Sandbox:
        return Watched(await self.call(self.inner.open(spec)), self)  # type: ignore[return-value]

    def capabilities(self) -> Any:
        return self.inner.capabilities()

    async def close(self) -> None:
        await self.inner.close()


class Watched:
    """A sandbox whose calls go by its backend."""

    def __init__(self, box: Sandbox, backend: Sabotaged) -> None:
        self.box, self.backend, self.id, self.capabilities = box, backend, box.id, box.capabilities

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.box, name)
        return lambda *args, **how: self.backend.call(method(*args, **how))


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    module, config = registry.configure("models.chat", "chatml")
    return module.create(config, load("tiny:").tokenizer)


async def verdict(backend: Any, chat: ChatFormat) -> Verdict:
    domain = code_repair.create()
    task = next(domain.tasks("train", 2))
    limits = msgspec.structs.replace(task.limits, tokens=9999, turn_tokens=9999)
    task = msgspec.structs.replace(task, limits=limits)
    environment = domain.environment(task, Resources(backend, time.monotonic, random.Random(0)))
    model = ScriptedChat(domain.gold(task), chat)
    trace, artifacts = await run_episode(
        task, environment, model, SamplingParams(), trace_id="t", seed=0, clock=time.monotonic
    )
    name, settings = domain.verifier(task)
    module, config = registry.configure("verifiers", {"kind": name, **settings})
    return await grade(task, trace, artifacts, module.create(config, None, backend))


@pytest.mark.parametrize("after", [0.0, 0.004], ids=["at once", "in the middle"])
@pytest.mark.parametrize("victims", VICTIMS)
def test_a_kill_at_any_step_is_masked_or_harmless(victims: str, after: float, chat: ChatFormat) -> None:
    masked = 0

    async def run(at: int) -> bool:
        """Whether the fault was reached."""
        nonlocal masked
        backend = Sabotaged(VICTIMS[victims], at, after)
        try:
            found = await verdict(backend, chat)
        finally:
            await backend.close()
        assert found.masked or found.score == 1.0, (at, found)
        masked += found.masked
        return backend.calls > at

    for at in itertools.count():
        if not asyncio.run(asyncio.wait_for(run(at), 60)):
            break
    assert at >= 6  # two sandboxes are opened, written to, run in, closed
    assert masked > 0 or victims == "commands"


@pytest.mark.parametrize("victims", VICTIMS)
def test_a_kill_under_a_zygotes_run_is_ours_or_harmless(victims: str) -> None:
    """The program is right, so any end of it but the right one would be a false zero."""

    async def run(after: float) -> str:
        backend = local.create()
        zygote = Zygote(backend, lanes=1)
        try:
            await zygote.run("")
            running = asyncio.create_task(zygote.run("import time; time.sleep(0.03); print('right')"))
            await asyncio.sleep(after)
            for pid in VICTIMS[victims](backend.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            found = await running
            assert (found.cause, found.code, found.stdout) == ("exited", 0, b"right\n"), found
            return "harmless"
        except (FaultError, BackendError):
            return "ours"
        finally:
            await zygote.close()
            await backend.close()

    delays = (0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.03, 0.05)
    assert "ours" in [asyncio.run(asyncio.wait_for(run(after), 60)) for after in delays]


REFUSED = """
import asyncio
from pathlib import Path
from temper.core.blame import FaultError
from temper.core.errors import RefusedError
from temper.core.task import SandboxSpec
from temper.sandboxes import local
from temper.sandboxes.zygote import Zygote
async def attempt():
    backend = None
    try:
        backend = local.create()
        boxes = [await backend.open(SandboxSpec()) for _ in range(2)]
        return {(await box.exec(["echo", "hi"])).cause for box in boxes} == {"exited"} and "works"
    except (FaultError, RefusedError) as error:
        return "refused"
    finally:
        if backend: await backend.close()
for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup"):
    switch = Path(f"/proc/sys/user/max_{kind}_namespaces")
    for room in (0, 1, 2, 3, 6, 40):
        switch.write_text(str(room))
        print(kind, asyncio.run(attempt()))
    switch.write_text("999")
"""


def test_a_namespace_or_mount_that_the_kernel_refuses_is_ours() -> None:
    """As the root of a user namespace with room for ever more namespaces of a kind: first none, in the end enough."""
    argv = ["unshare", "--user", "--map-root-user", sys.executable, "-c", REFUSED]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=100)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 42, done.stdout + done.stderr
    assert all(outcome in ("refused", "works") for _, outcome in lines), lines
    assert [outcome for _, outcome in lines[::6]] == ["refused"] * 7
    assert [outcome for _, outcome in lines[5::6]] == ["works"] * 7


def test_descriptors_that_run_out_are_ours() -> None:
    async def run() -> None:
        backend = local.create()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        boxes: list[Sandbox] = []

        async def open_more(n: int) -> None:
            for _ in range(n):
                boxes.append(await backend.open(SandboxSpec()))

        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 6, hard))
            with pytest.raises((FaultError, OSError)):
                await open_more(20)
            assert (await boxes[0].exec(["echo"])).cause == "exited"
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await (await backend.open(SandboxSpec())).close()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await backend.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_words_for_our_faults_are_masked_in_the_table() -> None:
    ours = {what for what, ruling in TABLE.items() if ruling.blame == "infrastructure"}
    assert {"backend-lost", "lease-lost", "our-disk", "network", "worker-lost", "wait-limit"} <= ours
    assert all(TABLE[what].masked for what in ours)
