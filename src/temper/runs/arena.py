"""Where episodes are played and graded: the domains, sandboxes and verifier workers of one process.

The driver has one (`workshop`), and each environment worker its own (`farm`). Which model plays, the caller says;
nothing here is stored, tried again, or needs torch.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from temper.core import registry
from temper.core.protocols import (
    ChatModel,
    Domain,
    Environment,
    Reply,
    Resources,
    SamplingParams,
    SandboxBackend,
    Verifier,
)
from temper.core.task import Task
from temper.core.trace import Cost, Trace, Verdict
from temper.rollouts.branching import run_branches
from temper.rollouts.episode import Episode, run_episode
from temper.rollouts.resumed import Resumed, Said
from temper.sandboxes.pool import leased, named
from temper.scheduling.ledger import Occupancy
from temper.verifiers.grading import grade
from temper.verifiers.pool import Pool

Far = Literal["gold", "given", "policy"]  # the domain's own answer, the workers' model, or the driver's engine


class Plan(Struct, frozen=True, kw_only=True):
    """What an arena is made of. domains: settings by kind. sandbox: a table, as in a recipe."""

    domains: dict[str, dict[str, Any]]
    sandbox: dict[str, Any]
    verifier_workers: int


class Order(Struct, frozen=True, kw_only=True):
    """One attempt. `origin`: the task whose grader is used, where `task` shows the model a longer prompt.

    model: who plays, where a worker is to find it. said: replies to be said again (`rollouts.resumed`); None: no turn
    is recorded. fork: the turn from which the conversation goes on in so many ways.
    """

    trace: str
    task: Task
    params: SamplingParams
    model: Far = "policy"
    origin: Task | None = None
    said: tuple[Reply, ...] | None = None
    fork: tuple[int, int] | None = None


class Arena:
    """`async with Arena(plan) as arena: trace, verdicts = await arena.play(...)`."""

    def __init__(self, plan: Plan) -> None:
        self.domains = {kind: _domain(kind, settings) for kind, settings in plan.domains.items()}
        self._plan = plan
        self._verifiers: dict[str, Verifier] = {}
        self._occupied = Occupancy(plan.verifier_workers)

    async def __aenter__(self) -> Arena:
        module, config = registry.configure("sandboxes", self._plan.sandbox)
        self.sandboxes: SandboxBackend = module.create(config)
        self._grading = named(self.sandboxes, "verifiers")  # the same ones
        self._pool = Pool(workers=self._plan.verifier_workers)
        await self._pool.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        try:
            await self._pool.__aexit__(*exception)
        finally:
            await self.sandboxes.close()

    async def play(
        self,
        order: Order,
        model: ChatModel,
        clock: Callable[[], float],
        turned: Callable[[Said], None] = lambda said: None,
    ) -> tuple[Trace, tuple[Verdict, ...]]:
        """One episode and its verdict, or a tree and a verdict on each leaf; never raises for what happened inside.

        `turned` hears of the turns of a conversation that `said` was given for.
        """
        if order.said is not None:
            model = Resumed(model, order.trace, order.said, turned)
        if order.fork is not None:
            return await self._forked(order, model, clock, *order.fork)
        async with self._world(order, clock) as environment:
            trace, artifacts = await run_episode(
                order.task, environment, model, order.params, trace_id=order.trace, seed=order.params.seed, clock=clock
            )
        verdict, cost = await self._graded(order.origin or order.task, trace, artifacts, clock)
        return replace(trace, cost=trace.cost + cost), (verdict,)

    async def _forked(
        self, order: Order, model: ChatModel, clock: Callable[[], float], turn: int, children: int
    ) -> tuple[Trace, tuple[Verdict, ...]]:
        async with self._world(order, clock) as environment:
            trunk = Episode(order.task, environment, model, order.params, order.trace, clock)
            tree, branches = await run_branches(trunk, turn, children)
        graded = await asyncio.gather(*(self._graded(order.task, b.trace, b.artifacts, clock) for b in branches))
        tree = replace(tree, cost=sum((cost for _, cost in graded), tree.cost))
        return tree, tuple(branch.placed(v) for branch, (v, _) in zip(branches, graded, strict=True))

    def busy(self) -> dict[str, float]:
        """See `core.protocols.Metered`: seconds of verifier workers."""
        return {"verify": self._occupied.seconds}

    async def _graded(
        self, task: Task, trace: Trace, artifacts: Mapping[str, bytes], clock: Callable[[], float]
    ) -> tuple[Verdict, Cost]:
        began = clock()
        self._occupied.come(began)
        try:
            verdict = await grade(task, trace, artifacts, self.verifier(task))
        finally:
            self._occupied.go(clock())
        return verdict, Cost(verify=clock() - began)

    @contextlib.asynccontextmanager
    async def _world(self, order: Order, clock: Callable[[], float]) -> AsyncGenerator[Environment]:
        """The task's environment; the sandboxes that it opens end with this block."""
        async with leased(self.sandboxes, order.trace) as sandboxes:
            resources = Resources(sandboxes, clock, random.Random(f"{order.trace}:{order.params.seed}"))
            yield self.domains[order.task.domain].environment(order.task, resources)

    def verifier(self, task: Task) -> Verifier:
        name, settings = self.domains[task.domain].verifier(task)
        key = f"{name}:{sorted(settings.items())}"
        if key not in self._verifiers:
            module, config = registry.configure("verifiers", {"kind": name, **settings})
            self._verifiers[key] = module.create(config, self._pool, self._grading)
        return self._verifiers[key]


def _domain(kind: str, settings: dict[str, Any]) -> Domain:
    module, config = registry.configure("domains", {"kind": kind, **settings})
    return module.create(config)
