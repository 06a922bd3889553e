"""What all stages of a run share: model, engine, trainer, domains, sandboxes, verifiers, store, and one compute thread.

Engine and trainer hold two modules over the same frozen weights and take turns on the compute thread, so that on one
machine neither waits for tools or verifiers, and the event loop never waits for either.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from temper.core import registry
from temper.core.errors import ConfigError
from temper.core.protocols import ChatModel, Domain, Engine, Resources, SamplingParams, SandboxBackend, Sink, Verifier
from temper.core.task import Split, Task
from temper.core.trace import Event, Trace, Verdict
from temper.engines.chat import EngineChat
from temper.models.load import Base, load
from temper.models.policy import Policy
from temper.rollouts.episode import run_episode
from temper.runs.recipe import Recipe
from temper.sandboxes.pool import leased, named
from temper.store.run import Metrics, RunDirectory
from temper.verifiers.grading import grade
from temper.verifiers.pool import Pool

T = TypeVar("T")


class Workshop:
    """Everything that a stage needs. Made by `opened`, which also closes it."""

    recipe: Recipe
    run: RunDirectory
    base: Base
    policy: Policy
    engine: Engine
    model: ChatModel
    chat: Any
    domains: dict[str, Domain]
    sandboxes: SandboxBackend
    grading: SandboxBackend  # the same ones, for the verifiers
    pool: Pool
    compute: ThreadPoolExecutor
    version = 0  # of the weights that were published last

    def __init__(self, recipe: Recipe, run: RunDirectory, sinks: list[Sink]) -> None:
        self.recipe = recipe
        self.run = run
        self.sinks = sinks
        self.began = time.monotonic()
        self.domains = {d.kind: _domain(d.kind, d.settings) for d in recipe.domains}
        self.levels = {d.kind: d.level for d in recipe.domains}
        self.shares = {d.kind: d.share for d in recipe.domains}
        self._verifiers: dict[str, Verifier] = {}

    def clock(self) -> float:
        """Seconds since this process took up the run."""
        return time.monotonic() - self.began

    def event(self, what: str, whom: str = "", why: str = "", **data: Any) -> None:
        event = Event(when=self.clock(), what=what, whom=whom, why=why, data=data)
        self.run.events.append(event)
        for sink in self.sinks:
            sink.event(event)

    def metrics(self, stage: str, step: int, values: dict[str, float]) -> None:
        self.run.metrics.append(Metrics(step, stage, values))
        for sink in self.sinks:
            sink.metrics(step, values)

    def progress(self, done: int, total: int) -> None:
        """How far the current part is; shown and not stored."""
        event = Event(when=self.clock(), what="progress", data={"done": done, "total": total})
        for sink in self.sinks:
            sink.event(event)

    def latest(self, stage: str) -> Path | None:
        """The stage's newest checkpoint that is whole; damaged ones that were passed over are reported."""
        found = self.run.latest(stage)
        for why in found.skipped:
            self.event("checkpoint skipped", stage, why)
        return found.folder

    async def publish(self, version: int, mode: str = "recompute") -> None:
        """Hand the trained weights to the engine as `version`, unless it has them."""
        if version > self.engine.version:
            await self.engine.publish(self.policy.trainable(), version, mode)
        self.version = version

    async def computed(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work` on the compute thread, in turn with the engine's steps."""
        return await asyncio.get_running_loop().run_in_executor(self.compute, work, *args)

    def tasks(self, domain: str, split: Split) -> Iterator[Task]:
        """The domain's stream at the recipe's level and seed. Raises ConfigError for tasks of another domain."""
        for task in self.domains[domain].tasks(split, self.levels[domain], self.recipe.seed):
            if task.domain != domain:
                raise ConfigError(f"domain {domain} gives tasks that say they are of {task.domain!r}")
            yield task

    async def attempt(
        self, task: Task, model: ChatModel, params: SamplingParams, trace_id: str, origin: Task | None = None
    ) -> tuple[Trace, Verdict]:
        """One episode and its verdict; never raises for what happened inside.

        `origin`: the task whose world and grader are used, where `task` shows the model a longer prompt.
        """
        domain = self.domains[task.domain]
        async with leased(self.sandboxes, trace_id) as sandboxes:
            resources = Resources(sandboxes, self.clock, random.Random(f"{trace_id}:{params.seed}"))
            environment = domain.environment(task, resources)
            trace, artifacts = await run_episode(
                task, environment, model, params, trace_id=trace_id, seed=params.seed, clock=self.clock
            )
        return trace, await grade(origin or task, trace, artifacts, self.verifier(task))

    def verifier(self, task: Task) -> Verifier:
        name, settings = self.domains[task.domain].verifier(task)
        key = f"{name}:{sorted(settings.items())}"
        if key not in self._verifiers:
            module, config = registry.configure("verifiers", {"kind": name, **settings})
            self._verifiers[key] = module.create(config, self.pool, self.grading)
        return self._verifiers[key]


@contextlib.asynccontextmanager
async def opened(recipe: Recipe, run: RunDirectory, sinks: list[Sink]) -> AsyncIterator[Workshop]:
    """Load the model, start engine, sandboxes and verifier workers; end them all, whatever happens."""
    shop = Workshop(recipe, run, sinks)
    async with contextlib.AsyncExitStack() as stack:
        shop.compute = stack.enter_context(ThreadPoolExecutor(1, "compute"))
        shop.event("loading", recipe.model.base)
        shop.base = await shop.computed(load, recipe.model.base, recipe.model.dtype)
        module, config = registry.configure("models.chat", recipe.model.chat)
        shop.chat = module.create(config, shop.base.tokenizer)
        module, config = registry.configure("sandboxes", recipe.sandbox)
        shop.sandboxes = module.create(config)
        shop.grading = named(shop.sandboxes, "verifiers")
        stack.push_async_callback(shop.sandboxes.close)
        shop.pool = await stack.enter_async_context(Pool(workers=recipe.verifier_workers))
        module, config = registry.configure("engines", recipe.engine)
        adapter = recipe.model.adapter if recipe.model.train == "adapter" else None
        shop.engine = module.create(
            config, base=shop.base, adapter=adapter, full=adapter is None, executor=shop.compute
        )
        stack.push_async_callback(shop.engine.close)
        shop.model = EngineChat(shop.engine, shop.chat, name="policy")
        shop.policy = await shop.computed(partial(Policy, shop.base, adapter, True, seed=recipe.seed))
        shop.event("ready", recipe.model.base)
        yield shop


def _domain(kind: str, settings: dict[str, Any]) -> Domain:
    module, config = registry.configure("domains", {"kind": kind, **settings})
    return module.create(config)
