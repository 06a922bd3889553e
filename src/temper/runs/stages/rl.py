"""Asynchronous reinforcement learning: samples run while tools and verifiers work and while the trainer computes.

What may start, which groups are trained and what is held is decided by `scheduling.pacing`; this file carries it out.
Nothing finished is lost: a rollout is on disk before it counts, a group counts as trained when the checkpoint of its
step is, and a resumed run goes on from there.
"""

from __future__ import annotations

import asyncio
import hashlib

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from temper.core.blame import TABLE
from temper.core.errors import BackendError, DeadlineError
from temper.core.protocols import SamplingParams
from temper.core.task import Task
from temper.core.trace import Group, Sample, Trace, Verdict
from temper.runs.choice import Choice
from temper.runs.demonstrations import Shown
from temper.runs.workshop import Workshop
from temper.scheduling import pacing
from temper.scheduling.curriculum import shift
from temper.scheduling.ledger import Ledger
from temper.scheduling.pacing import Pacing, Ticket, Wait
from temper.scheduling.retry import Breaker, backoff
from temper.training import guards, trainer
from temper.training.scoring import snapshot
from temper.training.stages import rl

FADE = 0.05  # of what is known of a domain's use, by group
BROKEN = 30  # masked rollouts in a row after which something is broken for good, and the run stops and says so


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """publish: what running requests do with their cache when new weights come, `recompute` or `keep`.

    patience: seconds without a finished sample or step after which the run stops and says what it waits for.

    floor: below 1, domains' shares move to those with more useful groups a second; each keeps so much of its own.
    window: above 0, so many tasks of each domain are tried again and again, those that teach most a second first.
    """

    steps: int = 20
    pacing: pacing.Config = pacing.Config()
    update: rl.Config = rl.Config()
    trainer: trainer.Config = trainer.Config()
    guards: guards.Config = guards.Config()
    sampling: SamplingParams = SamplingParams()
    publish: str = "recompute"
    patience: float = 900.0
    floor: float = 1.0
    window: int = 0
    checkpoint_every: int = 1


class Opened(Struct, frozen=True, kw_only=True):
    """A group was opened on the `index`-th task of a domain's stream."""

    group: int
    domain: str
    index: int


class Rollout(Struct, frozen=True, kw_only=True):
    """A graded rollout that may be trained on: its trace and verdict are in their logs under `trace`."""

    group: int
    slot: int
    trace: str


class Progress(Struct, frozen=True, kw_only=True):
    """What a checkpoint says of the stage: groups trained so far."""

    trained: list[int]


async def run(shop: Workshop, config: Config) -> None:
    await _Rl(shop, config).run()


class _Rl:
    def __init__(self, shop: Workshop, config: Config) -> None:
        self.shop, self.config = shop, config
        heat = config.sampling.temperature or 1.0  # behaviour log-probs are those at the sampling temperature
        self.trainer = trainer.Trainer(shop.policy, replace(config.trainer, temperature=heat))
        self.trainer.version = shop.version
        self.guards = guards.Guards(config.guards)
        self.reference = snapshot(shop.policy) if config.update.kl else None  # before a checkpoint is loaded
        self.until = shop.version + config.steps
        self.opened = shop.run.log("groups", Opened)
        self.rollouts = shop.run.log("rollouts", Rollout)
        self.tasks: dict[int, Task] = {}
        self.samples: dict[int, dict[int, Sample]] = {}
        self.trained: list[int] = []
        self.running: dict[asyncio.Task[tuple[Trace, Verdict]], Ticket] = {}
        start = dict.fromkeys(shop.domains, 0)
        start |= {shown.domain: shown.count for shown in shop.run.log("shown", Shown)}
        size = config.pacing.group
        groups = int((config.pacing.eta + 1) * config.pacing.batch * (1 + config.pacing.spare)) // max(1, size)
        self.choice = Choice(shop, start, config.window, size, groups)
        self.masked = 0  # in a row
        self.held = ""
        self.ledger = Ledger()
        self.breaker = Breaker()
        self.useful = dict.fromkeys(shop.domains, 0.0)  # groups with a gradient, faded, for `floor`
        self.spent = dict.fromkeys(shop.domains, 0.0)  # their seconds over all stages
        self.since = shop.clock()

    async def run(self) -> None:
        saved = self.shop.latest("rl")
        if saved:
            await self.shop.computed(self.trainer.load, saved / "trainer")
            self.trained = msgspec.json.decode((saved / "progress.json").read_bytes(), type=Progress).trained
        self.pacing = Pacing(self.config.pacing, self.shop.shares, self.trainer.version, self.until)
        self._restore()
        await self.shop.publish(self.trainer.version, self.config.publish)
        try:
            while self.pacing.version < self.until:
                self.pacing.tick(self.shop.clock())
                self._admit()
                chosen = self.pacing.batch()
                if isinstance(chosen, Wait):
                    await self._finish_one(chosen.why)
                else:
                    await self._step(chosen)
        finally:
            for task in self.running:
                task.cancel()
            await asyncio.gather(*self.running, return_exceptions=True)

    def _restore(self) -> None:
        """Groups that were open when the last process ended, with their finished rollouts."""
        trained = set(self.trained)
        groups = {o.group: o for o in self.opened}
        for record in groups.values():
            self.choice.seen(record.domain, record.index)
            self.pacing.next_group = max(self.pacing.next_group, record.group + 1)
        left = {g: o for g, o in groups.items() if g not in trained}
        records = {r.trace: r for r in self.rollouts}
        wanted = {trace: r for trace, r in records.items() if r.group in left}
        traces: dict[str, Trace] = {}
        used = dict.fromkeys(trained & groups.keys(), 0)  # tokens
        for trace in self.shop.run.traces:
            if trace.id in wanted:
                traces[trace.id] = trace
            elif trace.id in records and records[trace.id].group in used:
                used[records[trace.id].group] += trace.cost.tokens_out
        for number, tokens in used.items():
            self.pacing.shares.credit(groups[number].domain, tokens)
        if not left:
            return
        verdicts = {v.trace: v for v in self.shop.run.verdicts if v.trace in wanted}
        for trace_id, record in wanted.items():
            sample = Sample(traces[trace_id], verdicts[trace_id])
            self.samples.setdefault(record.group, {})[record.slot] = sample
        for number, record in sorted(left.items()):
            self.tasks[number] = self.choice.resumed(record.domain, record.index)
            done = self.samples.setdefault(number, {})
            versions = {slot: min(s.trace.oldest_version, self.pacing.version) for slot, s in done.items()}
            self.pacing.restore(number, record.domain, versions)
        self.shop.event("resumed", "rl", f"{len(wanted)} finished rollouts of {len(left)} open groups are kept")

    def _admit(self) -> None:
        while not self.breaker.wait(self.shop.clock()) and isinstance(ticket := self.pacing.admit(), Ticket):
            self.breaker.started(self.shop.clock())
            if ticket.group not in self.tasks:
                self._open(ticket)
            task = self.tasks[ticket.group]
            name = f"rl-{ticket.group}-{ticket.slot}-{ticket.attempt}"
            self.shop.event("admitted", name, ticket.why, domain=ticket.domain, version=self.pacing.version)
            params = replace(self.config.sampling, seed=_seed(self.shop.recipe.seed, name))
            work = self._attempt(task, params, name, backoff(ticket.attempt, name))
            self.running[asyncio.create_task(work, name=name)] = ticket

    async def _attempt(self, task: Task, params: SamplingParams, name: str, wait: float) -> tuple[Trace, Verdict]:
        await asyncio.sleep(wait)
        return await self.shop.attempt(task, self.shop.model, params, name)

    def _open(self, ticket: Ticket) -> None:
        index, self.tasks[ticket.group] = self.choice.next(ticket.domain)
        self.samples[ticket.group] = {}
        self.opened.append(Opened(group=ticket.group, domain=ticket.domain, index=index))

    async def _finish_one(self, why: str) -> None:
        if why.startswith("hold") and why != self.held:
            self.held = why
            self.shop.event("wait", "rl", why)
        pause = self.breaker.wait(self.shop.clock())
        if not self.running:
            await asyncio.sleep(pause)
            return
        patience = pause or self.config.patience
        done, _ = await asyncio.wait(self.running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if not done and not pause:
            names = ", ".join(sorted(t.get_name() for t in self.running)[:5])
            raise DeadlineError(
                f"no rollout ended in {self.config.patience:g} s; the step waits for {why}; running: {names}"
            )
        for task in done:
            ticket = self.running.pop(task)
            if not task.cancelled():
                self._record(ticket, *task.result())

    def _record(self, ticket: Ticket, trace: Trace, verdict: Verdict) -> None:
        self.pacing.tick(self.shop.clock())
        self.ledger.add(ticket.domain, trace.cost)
        self.shop.run.traces.append(trace)
        self.shop.run.verdicts.append(verdict)
        if verdict.masked:
            self._mask(ticket, trace.id, verdict)
            return
        self.masked = 0
        if self.breaker.worked():
            self.shop.event("closed", "rl", f"{trace.id} ended well: samples start again")
        self.rollouts.append(Rollout(group=ticket.group, slot=ticket.slot, trace=trace.id))
        if ticket.group in self.pacing.groups:
            self.samples[ticket.group][ticket.slot] = Sample(trace, verdict)
            self.pacing.finished(ticket, trace.oldest_version, trace.cost.tokens_out)
        self.shop.event("rollout", trace.id, trace.stop, domain=ticket.domain, reward=verdict.reward)

    def _mask(self, ticket: Ticket, trace: str, verdict: Verdict) -> None:
        """A rollout that nobody learns from: it alone is run again, or its task is taken out."""
        decision = self.pacing.failed(ticket, quarantine=TABLE[verdict.why].training == "quarantine")
        detail = verdict.evidence[0].text if verdict.evidence else ""
        why = f"{verdict.why}, blame {verdict.blame}: {detail}"
        self.shop.event(decision.split(":")[0], trace, f"{why}; {decision}", domain=ticket.domain)
        if ticket.group not in self.pacing.groups:
            self.samples.pop(ticket.group, None)
        self.masked += 1
        if TABLE[verdict.why].training == "retry" and self.breaker.failed(self.shop.clock()):
            self.shop.event(
                "opened", "rl", f"{self.breaker.faults} faults in a row, the last: {why}; one sample at a time is tried"
            )
        if self.masked >= BROKEN:
            raise BackendError(
                f"{self.masked} rollouts in a row could not be graded, the last of domain {ticket.domain}: {why}. "
                f"Nothing finished is lost; mend it and go on with: temper run --resume {self.shop.run.path}"
            )

    async def _step(self, chosen: list[int]) -> None:
        groups = [self._group(number) for number in chosen]
        began = self.shop.clock()
        metrics = await self.shop.computed(rl.step, self.trainer, groups, self.config.update, self.reference)
        for alarm in self.guards.observe(metrics):
            self.shop.event("alarm", "rl", alarm)
        gradient = (self.shop.clock() - began) / len(groups)
        self.trained += chosen
        alike = [n for n, g in zip(chosen, groups, strict=True) if len({s.verdict.reward for s in g.samples}) == 1]
        for number in self.pacing.trained(chosen, useless=alike):
            self._cancel(number)
        if self.trainer.version % self.config.checkpoint_every == 0 or self.trainer.version == self.until:
            await self._checkpoint()
        await self.shop.publish(self.trainer.version, self.config.publish)
        for number, group in zip(chosen, groups, strict=True):
            self.ledger.spend("gradient", group.domain, gradient)
            seconds = (gradient + sum(s.trace.cost.seconds for s in group.samples)) / len(group.samples)
            self.choice.learnt(self.tasks[number], group.samples, seconds, self.trainer.version)
        metrics |= {f"seconds/{stage}": self.ledger.stage(stage) for stage in self.ledger.seconds}
        if self.config.floor < 1:
            self._shift(groups, gradient)
        now = self.shop.clock()
        tokens = metrics["tokens"] + sum(
            s.trace.cost.tokens_in + s.trace.cost.tokens_out for g in groups for s in g.samples
        )
        metrics["tokens_per_second"], self.since = tokens / (now - self.since), now
        self.shop.metrics("rl", self.trainer.version, metrics | _summary(groups))
        self.shop.progress(self.config.steps + self.trainer.version - self.until, self.config.steps)
        for number in chosen:
            del self.samples[number], self.tasks[number]

    def _shift(self, groups: list[Group], gradient: float) -> None:
        """Move the domains' shares to where groups still teach. `gradient`: seconds of a group's."""
        for group in groups:
            seconds = gradient + sum(s.trace.cost.seconds for s in group.samples)
            teaches = len({s.verdict.reward for s in group.samples}) > 1
            self.useful[group.domain] += teaches - FADE * self.useful[group.domain]
            self.spent[group.domain] += seconds - FADE * self.spent[group.domain]
        signal = {name: self.useful[name] / (self.spent[name] or 1.0) for name in self.useful}
        shares = shift(self.shop.shares, signal, self.config.floor)
        self.pacing.shares.set(shares)
        why = ", ".join(f"{name} {share:.0%} for {signal[name]:.3g}" for name, share in shares.items())
        self.shop.event("weighted", "rl", f"shares for useful groups a second: {why}")

    def _cancel(self, number: int) -> None:
        """A group that would become too old, where `spare` chooses that over waiting."""
        for task in [t for t, ticket in self.running.items() if ticket.group == number]:
            task.cancel()
        del self.samples[number], self.tasks[number]
        kept = self.pacing.kept_over_started
        self.shop.event("cancelled", f"rl-{number}", f"over age; mean length kept over started is {kept:.2f} so far")

    def _group(self, number: int) -> Group:
        task = self.tasks[number]
        samples = tuple(self.samples[number][slot] for slot in sorted(self.samples[number]))
        return Group(task.id, task.domain, samples)

    async def _checkpoint(self) -> None:
        with self.shop.run.checkpoint(f"rl-{self.trainer.version:06d}") as folder:
            await self.shop.computed(self.trainer.save, folder / "trainer")
            (folder / "progress.json").write_bytes(msgspec.json.encode(Progress(trained=self.trained)))


def _seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:6], "big")


def _summary(groups: list[Group]) -> dict[str, float]:
    """Mean reward by domain of one step's groups."""
    rewards: dict[str, list[float]] = {}
    for group in groups:
        rewards.setdefault(f"reward/{group.domain}", []).extend(s.verdict.reward for s in group.samples)
    return {key: sum(values) / len(values) for key, values in sorted(rewards.items())}
