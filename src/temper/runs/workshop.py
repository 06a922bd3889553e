"""What all stages of a run share: model, engine, trainer, domains, sandboxes, verifiers, store, and one compute thread.

Engine and trainer hold two modules over the same frozen weights and take turns on the compute thread, so that on one
machine neither waits for tools or verifiers, and the event loop never waits for either.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from temper.core import registry
from temper.core.blame import FaultError
from temper.core.errors import ConfigError
from temper.core.protocols import ChatModel, Engine, Metered, Reply, SamplingParams, Sink
from temper.core.task import Split, Task
from temper.core.trace import Cost, Event, Trace, Verdict
from temper.engines.chat import EngineChat
from temper.engines.scripted import ScriptedChat
from temper.models.load import Base, load
from temper.models.policy import Policy
from temper.rollouts.resumed import Said
from temper.runs import ranks
from temper.runs.accounts import Accounts
from temper.runs.arena import Arena, Far, Order, Plan
from temper.runs.farm import Farm, lost
from temper.runs.recipe import Recipe
from temper.runs.worker import Setup
from temper.store import codec
from temper.store.run import Metrics, RunDirectory
from temper.training.parallel.sharded import spread
from temper.verifiers.grading import grade

T = TypeVar("T")


class Workshop:
    """Everything that a stage needs. Made by `opened`, which also closes it."""

    recipe: Recipe
    run: RunDirectory
    base: Base
    policy: Policy
    engine: Engine
    model: ChatModel | Far  # the policy, or what is evaluated in its place
    chat: Any
    arena: Arena
    farm: Farm | None = None  # environment workers, where the recipe asks for them
    compute: ThreadPoolExecutor
    version = 0  # of the weights that were published last
    interrupted: dict[str, tuple[Reply, ...]]  # by trace: what was said in an attempt that was lost with its worker

    def __init__(self, recipe: Recipe, run: RunDirectory, sinks: list[Sink]) -> None:
        self.recipe = recipe
        self.run = run
        self.sinks = sinks
        self.began = time.monotonic()
        self.interrupted = {}
        domains = {d.kind: d.settings for d in recipe.domains}
        self.plan = Plan(domains=domains, sandbox=recipe.sandbox, verifier_workers=recipe.verifier_workers)
        self.arena = Arena(self.plan)
        self.domains = self.arena.domains
        self.levels = {d.kind: d.level for d in recipe.domains}
        self.shares = {d.kind: d.share for d in recipe.domains}
        self.accounts = Accounts(recipe, run, self.event, self.clock)

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
            began, weights = self.clock(), await self.computed(self.policy.trainable)
            await self.engine.publish(weights, version, mode)
            size = sum(w.nbytes for w in weights.values())
            self.accounts.spend(Cost(sync=self.clock() - began), bytes={"sync": size})
        self.version = version

    def learning(self) -> Policy:
        """A new policy to train."""
        model = self.recipe.model
        adapter = model.adapter if model.train == "adapter" else None
        policy = Policy(self.base, adapter, True, seed=self.recipe.seed)
        return spread(policy) if model.shard else policy

    async def computed(self, work: Callable[..., T], *args: Any) -> T:
        """Run `work` on the compute thread, in turn with the engine's steps."""
        return await asyncio.get_running_loop().run_in_executor(self.compute, work, *args)

    def tasks(self, domain: str, split: Split) -> Iterator[Task]:
        """The domain's stream at the recipe's level and seed. Raises ConfigError for tasks of another domain."""
        for task in self.domains[domain].tasks(split, self.levels[domain], self.recipe.seed):
            if task.domain != domain:
                raise ConfigError(f"domain {domain} gives tasks that say they are of {task.domain!r}")
            yield task

    def seeded(self, params: SamplingParams, name: str) -> SamplingParams:
        """`params` with a seed that is the recipe's and `name`'s own."""
        digest = hashlib.sha256(f"{self.recipe.seed}:{name}".encode()).digest()
        return msgspec.structs.replace(params, seed=int.from_bytes(digest[:6], "big"))

    def gold(self, task: Task) -> ChatModel | Far:
        """The model that says the domain's own answer: in the workers where there are any, else here."""
        return "gold" if self.farm else ScriptedChat(self.domains[task.domain].gold(task), self.chat)

    async def attempt(
        self,
        task: Task,
        model: ChatModel | Far,
        params: SamplingParams,
        trace_id: str,
        origin: Task | None = None,
        store: bool = True,
        said: Sequence[Reply] | None = None,
    ) -> tuple[Trace, Verdict]:
        """One episode and its verdict, stored in the run; see `Arena.play`. `model`: one here, or the workers'.

        said: what an earlier process had of the conversation; with it, turns are recorded as they pass. Raises
        BudgetError where another one is more than the recipe allows.
        """
        turns = None if said is None else tuple(said)
        order = Order(trace=trace_id, task=task, params=params, origin=origin, said=turns)
        trace, (verdict,) = await self._played(order, model, store)
        return trace, verdict

    async def forked(
        self, task: Task, params: SamplingParams, trace_id: str, turn: int, children: int
    ) -> tuple[Trace, tuple[Verdict, ...]]:
        """One tree of episodes and the verdicts on its leaves, in the same way."""
        return await self._played(Order(trace=trace_id, task=task, params=params, fork=(turn, children)), self.model)

    async def _played(
        self, order: Order, model: ChatModel | Far, store: bool = True
    ) -> tuple[Trace, tuple[Verdict, ...]]:
        self.accounts.afford()
        if isinstance(model, str):
            trace, verdicts, encoded = await self._afar(msgspec.structs.replace(order, model=model))
        else:
            trace, verdicts = await self.arena.play(order, model, self.clock, self._turned)
            encoded = trace
        if store:
            self.run.traces.append(encoded)
            for verdict in verdicts:
                self.run.verdicts.append(verdict)
        self.accounts.spend(trace.cost, trace.domain)
        return trace, verdicts

    def _turned(self, said: Said | msgspec.Raw) -> None:
        self.run.log("turns", Said).append(said)

    async def _afar(self, order: Order) -> tuple[Trace, tuple[Verdict, ...], Trace | msgspec.Raw]:
        """By a worker. The trace comes encoded and is stored so, without its tokens being copied once more."""
        assert self.farm is not None
        turns: list[msgspec.Raw] = []

        def turned(said: msgspec.Raw) -> None:
            self._turned(said)
            turns.append(said)

        try:
            content, verdicts = await self.farm.attempt(order, turned)
        except FaultError as error:
            if said := (*(order.said or ()), *(codec.decode(bytes(turn), Said).reply for turn in turns)):
                self.interrupted[order.trace] = said
            gone = lost(order, error, self.clock())
            task = order.origin or order.task
            return gone, (await grade(task, gone, {}, self.arena.verifier(task)),), gone
        trace = codec.decode(content, Trace)
        for event in trace.events:
            if event.what in ("opened", "closed", "moved"):
                self.event(event.what, event.whom, event.why)
        return trace, codec.decode(verdicts, tuple[Verdict, ...]), msgspec.Raw(content)


@contextlib.asynccontextmanager
async def opened(recipe: Recipe, run: RunDirectory, sinks: list[Sink]) -> AsyncGenerator[Workshop]:
    """Load the model, start engine, sandboxes and verifier workers; end them all, whatever happens."""
    shop = Workshop(recipe, run, sinks)
    async with contextlib.AsyncExitStack() as stack:
        shop.compute = stack.enter_context(ThreadPoolExecutor(1, "compute"))
        shop.event("loading", recipe.model.base)
        shop.base = await shop.computed(load, recipe.model.base, recipe.model.dtype)
        module, config = registry.configure("models.chat", recipe.model.chat)
        shop.chat = module.create(config, shop.base.tokenizer)
        await stack.enter_async_context(shop.arena)
        module, config = registry.configure("engines", recipe.engine)
        if recipe.deterministic:
            config = msgspec.structs.replace(config, batch_invariant=True)
        adapter = recipe.model.adapter if recipe.model.train == "adapter" else None
        shop.engine = module.create(
            config, base=shop.base, adapter=adapter, full=adapter is None, executor=shop.compute
        )
        stack.push_async_callback(shop.engine.close)
        shop.model = EngineChat(shop.engine, shop.chat, name="policy")
        if workers := recipe.workers:
            tokenizer = shop.base.tokenizer.to_str()
            setup = Setup(plan=shop.plan, tokenizer=tokenizer, chat=recipe.model.chat, model=workers.model)
            farm = Farm(workers, setup, shop.event, shop.clock, shop.engine)
            shop.farm = await stack.enter_async_context(farm)
            shop.model = "given" if workers.model else "policy"
        if recipe.ranks:
            await stack.enter_async_context(ranks.company(recipe.ranks, shop.compute))
        shop.policy = await shop.computed(shop.learning)
        at_once = workers.count * workers.at_once if workers else getattr(config, "slots", 64)
        verifying = recipe.verifier_workers * (workers.count if workers else 1)
        shop.accounts.meters = shop.engine, shop.arena
        compute = "compute" if isinstance(shop.engine, Metered) else "gradient"
        shop.accounts.workers = {compute: 1, "verification": verifying, "environment": at_once}
        shop.event("ready", recipe.model.base, workers=shop.accounts.workers)
        yield shop
