"""How sampling and learning take turns: start what may start, wait for what ends, take a step when a batch is there."""

from __future__ import annotations

from collections.abc import Sequence

from temper.core.trace import Cost, Group
from temper.runs.choice import Choice
from temper.runs.demonstrations import Shown
from temper.runs.stages.rl import Config
from temper.runs.stages.rl.attempts import Attempts
from temper.runs.stages.rl.learner import Learner
from temper.runs.stages.rl.probe import Probe
from temper.runs.stages.rl.records import Groups, teaches, traces
from temper.runs.workshop import Workshop
from temper.scheduling.curriculum import shift
from temper.scheduling.pacing import Pacing, Wait
from temper.scheduling.waves import Waves

FADE = 0.05  # of what is known of a domain's use, by group


class Loop:
    def __init__(self, shop: Workshop, config: Config) -> None:
        self.shop, self.config = shop, config
        self.learner = Learner(shop, config)
        self.probe = Probe(shop, config, shop.version)
        start = dict.fromkeys(shop.domains, 0)
        start |= {shown.domain: shown.count for shown in shop.run.log("shown", Shown)}
        size = config.pacing.group
        most = int((config.pacing.eta + 1) * config.pacing.batch * (1 + config.pacing.spare)) // max(1, size)
        self.choice = Choice(shop, start, config.window, size, most)
        self.groups = Groups(shop, self.choice)
        self._useful = dict.fromkeys(shop.domains, 0.0)  # groups with a gradient, faded, for `floor`
        self._spent = dict.fromkeys(shop.domains, 0.0)  # their seconds over all stages
        self._since = shop.clock()

    async def run(self) -> None:
        shop, config, learner = self.shop, self.config, self.learner
        await learner.load()
        kind = Waves if shop.recipe.deterministic else Pacing
        self.pacing = kind(config.pacing, shop.shares, learner.version, learner.until)
        self.groups.restore(self.pacing, learner.trained)
        self.attempts = Attempts(shop, config, self.pacing, self.groups)
        self.attempts.settle_all()
        await shop.publish(learner.version, config.publish)
        try:
            while self.pacing.version < learner.until:
                self.pacing.tick(shop.clock())
                self.attempts.admit()
                chosen = self.pacing.batch()
                if isinstance(chosen, Wait):
                    await self.attempts.finish(chosen.why)
                else:
                    await self._step(chosen)
        finally:
            await self.attempts.close()

    async def _step(self, chosen: list[int]) -> None:
        groups = [self.groups.group(number) for number in chosen]
        heldout = await self.probe.take(self.learner.version)
        metrics, seconds = await self.learner.update(chosen, groups)
        alike = [n for n, g in zip(chosen, groups, strict=True) if not teaches(g)]
        metrics["groups_refilled"] = float(self.pacing.refilled[self.pacing.version])
        for number in self.pacing.trained(chosen, useless=alike):
            self.attempts.cancel(number)
        self._account(chosen, groups, seconds / len(groups))
        facts = {"groups": chosen, "version": self.learner.version, "worst": self.pacing.shares.worst}
        self.shop.event("trained", "rl", "the oldest complete groups", **facts)
        self.shop.accounts.advise()
        self._report(groups, metrics | heldout)  # before the checkpoint, which never knows more than the logs
        for number in chosen:
            self.groups.forget(number)
        self.attempts.settle_all()
        await self.learner.save()
        await self.shop.publish(self.learner.version, self.config.publish)

    def _account(self, chosen: Sequence[int], groups: Sequence[Group], gradient: float) -> None:
        """What was learnt where, at what cost. `gradient`: seconds of a group's."""
        for number, group in zip(chosen, groups, strict=True):
            self.shop.accounts.spend(Cost(gradient=gradient), group.domain)
            seconds = (gradient + sum(t.cost.seconds for t in traces(group))) / len(group.samples)
            self.choice.learnt(self.groups.tasks[number], group.samples, seconds, self.learner.version)
        if self.config.floor < 1:
            self._shift(groups, gradient)

    def _shift(self, groups: Sequence[Group], gradient: float) -> None:
        """Move the domains' shares to where groups still teach."""
        for group in groups:
            seconds = gradient + sum(t.cost.seconds for t in traces(group))
            self._useful[group.domain] += teaches(group) - FADE * self._useful[group.domain]
            self._spent[group.domain] += seconds - FADE * self._spent[group.domain]
        signal = {name: self._useful[name] / (self._spent[name] or 1.0) for name in self._useful}
        shares = shift(self.shop.shares, signal, self.config.floor)
        self.pacing.shares.set(shares)
        why = ", ".join(f"{name} {share:.0%} for {signal[name]:.3g}" for name, share in shares.items())
        self.shop.event("weighted", "rl", f"shares for useful groups a second: {why}")

    def _report(self, groups: Sequence[Group], metrics: dict[str, float]) -> None:
        costs = [t.cost for g in groups for t in traces(g)]
        now = self.shop.clock()
        tokens = metrics["tokens"] + sum(cost.tokens_in + cost.tokens_out for cost in costs)
        metrics["tokens_per_second"], self._since = tokens / (now - self._since), now
        spent = self.shop.accounts.part
        metrics |= {f"seconds/{stage}": spent.stage(stage) for stage in spent.seconds}
        self.shop.metrics("rl", self.learner.version, metrics | _rewards(groups))
        self.shop.progress(self.config.steps + self.learner.version - self.learner.until, self.config.steps)


def _rewards(groups: Sequence[Group]) -> dict[str, float]:
    """Mean reward by domain of one step's groups."""
    rewards: dict[str, list[float]] = {}
    for group in groups:
        graded = [s.verdict.reward for s in group.samples if not s.verdict.masked]
        rewards.setdefault(f"reward/{group.domain}", []).extend(graded)
    return {key: sum(values) / len(values) for key, values in sorted(rewards.items())}
