"""Running samples: started as `pacing` allows, recorded as they end, run again where no policy is to blame.

Faults in a row open a breaker, so that an outage costs each sample about one try; too many of them end the run with
the reason, and nothing finished is lost.
"""

from __future__ import annotations

import asyncio

from temper.core import registry
from temper.core.blame import TABLE
from temper.core.errors import BackendError, DeadlineError
from temper.core.protocols import SamplingParams
from temper.core.task import Task
from temper.core.trace import Trace, Verdict
from temper.runs.stages.rl import Config
from temper.runs.stages.rl.records import Groups, named, teaches
from temper.runs.workshop import Workshop
from temper.scheduling.pacing import Pacing, Ticket
from temper.scheduling.placement import worker_of
from temper.scheduling.retry import Breaker, backoff

Ended = tuple[Trace, tuple[Verdict, ...]]  # a verdict for each leaf

BROKEN = 30  # masked rollouts in a row after which something is broken for good, and the run stops and says so


class Attempts:
    """Those that run, by their tasks. One that is a tree of conversations has several verdicts."""

    def __init__(self, shop: Workshop, config: Config, pacing: Pacing, groups: Groups) -> None:
        self.shop, self.config, self.pacing, self.groups = shop, config, pacing, groups
        self.running: dict[asyncio.Task[Ended], Ticket] = {}
        self.breaker = Breaker()
        self._masked = 0  # in a row
        self._held = ""
        module, _ = registry.configure("training.algorithms", config.update.algorithm)
        self._resample = getattr(module, "resample", False)

    def admit(self) -> None:
        """Start what may start now."""
        while not self.breaker.wait(self.shop.clock()) and isinstance(ticket := self.pacing.admit(), Ticket):
            self.breaker.started(self.shop.clock())
            new = ticket.group not in self.groups.tasks
            task = self.groups.task(ticket)
            if new and (seconds := self.groups.choice.took(task)):
                self.pacing.expect(ticket.group, seconds)
            name = named(ticket.group, ticket.slot, ticket.attempt)
            self.shop.event("admitted", name, ticket.why, domain=ticket.domain, version=self.pacing.version)
            work = self._attempt(ticket, task, self.shop.seeded(self.config.sampling, name), name)
            self.running[asyncio.create_task(work, name=name)] = ticket

    async def finish(self, why: str) -> None:
        """Wait until something ends, and record it. `why`: what the step waits for. Raises DeadlineError."""
        if why.startswith("hold") and why != self._held:
            self._held = why
            self.shop.event("wait", "rl", why)
        pause = self.breaker.wait(self.shop.clock())
        if not self.running:
            if not self.breaker.open:
                raise DeadlineError(f"nothing runs that could end what the step waits for: {why}")
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

    def cancel(self, number: int) -> None:
        """A group that would become too old, where `spare` chooses that over waiting."""
        for task in [t for t, ticket in self.running.items() if ticket.group == number]:
            task.cancel()
        self.groups.drop(number)
        kept = self.pacing.kept_over_started
        self.shop.event("cancelled", f"rl-{number}", f"over age; mean length kept over started is {kept:.2f} so far")

    async def close(self) -> None:
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)

    def settle(self, number: int) -> None:
        """A group may be complete: where it teaches nothing, an algorithm may want another one in its place."""
        if not self._resample or number not in self.pacing.groups or not self.pacing.groups[number].complete:
            return
        step = self.pacing.due(number)
        limit = self.config.pacing.refill * self.config.pacing.batch // self.config.pacing.group
        for dropped in self.pacing.refill(number, not teaches(self.groups.group(number))):
            self.groups.drop(dropped, step)
            count = f"{self.pacing.refilled[step]} of at most {limit} for step {step}"
            self.shop.event("refilled", f"rl-{dropped}", f"its rewards are all alike; a new group instead: {count}")

    def settle_all(self) -> None:
        """After a restart, and after a step, whose end brings the rest of what was restored, and another limit."""
        for number in list(self.pacing.groups):
            self.settle(number)

    async def _attempt(self, ticket: Ticket, task: Task, params: SamplingParams, name: str) -> Ended:
        await asyncio.sleep(backoff(ticket.faults, name))
        shop, forks = self.shop, self.config.forks
        if forks is not None:
            turn = forks.turns[ticket.slot % len(forks.turns)]
            trace, verdicts = await shop.forked(task, params, name, turn, forks.children)
        else:
            said = self.groups.said.pop(name, [])
            if said:
                shop.event("resumed", name, f"its first {len(said)} turns are said again")
            trace, verdict = await shop.attempt(task, shop.model, params, name, said=said)
            verdicts = (verdict,)
        if not _judged(verdicts).masked:
            self.groups.record(ticket, trace)
        return trace, verdicts

    def _record(self, ticket: Ticket, trace: Trace, verdicts: tuple[Verdict, ...]) -> None:
        verdict = _judged(verdicts)
        self.pacing.tick(self.shop.clock())
        if verdict.masked:
            self._mask(ticket, trace, verdict)
            return
        self._masked = 0
        if self.breaker.worked():
            self.shop.event("closed", "rl", f"{trace.id} ended well: samples start again")
        self.groups.keep(ticket, trace, verdicts)
        self.pacing.finished(ticket, trace.oldest_version, trace.cost.tokens_out)
        facts = {"domain": ticket.domain, "reward": verdict.reward, "tokens": trace.cost.tokens_out}
        self.shop.event("rollout", trace.id, trace.stop, **facts)
        self.settle(ticket.group)

    def _mask(self, ticket: Ticket, trace: Trace, verdict: Verdict) -> None:
        """A rollout that nobody learns from: it alone is run again, or its task is taken out."""
        ungradable, preempted = TABLE[verdict.why].training == "quarantine", verdict.why == "preempted"
        said = self.shop.interrupted.pop(trace.id, ())
        decision = self.pacing.failed(ticket, ungradable, worker_of(trace), preempted, begun=bool(said))
        if said and decision.startswith("retried"):
            self.groups.said[named(ticket.group, ticket.slot, ticket.attempt + 1)] = [*said]
        detail = verdict.evidence[0].text if verdict.evidence else ""
        why = f"{verdict.why}, blame {verdict.blame}: {detail}"
        facts = {"domain": ticket.domain, "task": trace.task}
        self.shop.event(decision.split(":")[0], trace.id, f"{why}; {decision}", **facts)
        if ticket.group not in self.pacing.groups:
            self.groups.forget(ticket.group)
        if preempted:  # it alone, and nothing is broken
            return
        self._masked += 1
        if TABLE[verdict.why].training == "retry" and self.breaker.failed(self.shop.clock()):
            self.shop.event(
                "opened", "rl", f"{self.breaker.faults} faults in a row, the last: {why}; one sample at a time is tried"
            )
        if self._masked >= BROKEN:
            raise BackendError(
                f"{self._masked} rollouts in a row could not be graded, the last of domain {ticket.domain}: {why}. "
                f"Nothing finished is lost; mend it and go on with: temper run --resume {self.shop.run.path}"
            )


def _judged(verdicts: tuple[Verdict, ...]) -> Verdict:
    """That of a whole attempt: masked where all of its leaves are."""
    return next((v for v in verdicts if not v.masked), verdicts[0])
