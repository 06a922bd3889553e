"""What a run knows of its groups: on disk, and in memory while they are open.

A group is recorded when it is opened and each of its samples when it is graded, before either counts. What an earlier
process left behind comes back through `Groups.restore`. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct

from temper.core.protocols import Reply
from temper.core.task import Task
from temper.core.trace import Group, Sample, Trace, Verdict
from temper.rollouts.resumed import Said, oldest
from temper.runs.choice import Choice
from temper.runs.workshop import Workshop
from temper.scheduling.pacing import Pacing, Ticket


class Opened(Struct, frozen=True, kw_only=True):
    """A group was opened on the `index`-th task of a domain's stream."""

    group: int
    domain: str
    index: int


class Rollout(Struct, frozen=True, kw_only=True):
    """A graded rollout that may be trained on: its trace and verdicts are in their logs under `trace`."""

    group: int
    slot: int
    trace: str


class Dropped(Struct, frozen=True, kw_only=True):
    """A group that is not trained: cancelled over age, or it taught nothing and made room in the step at `step`."""

    group: int
    step: int = -1


class Progress(Struct, frozen=True, kw_only=True):
    """What a checkpoint says of the stage: groups trained so far."""

    trained: list[int]


class Groups:
    """The open groups: the task of each, and its graded samples by slot. `choice` gives a new group its task.

    said: by the name of an attempt, the replies of a conversation that was interrupted.
    """

    def __init__(self, shop: Workshop, choice: Choice) -> None:
        self.shop, self.choice = shop, choice
        self.tasks: dict[int, Task] = {}
        self.said: dict[str, list[Reply]] = {}
        self._samples: dict[int, dict[int, tuple[Sample, ...]]] = {}
        self._opened = shop.run.log("groups", Opened)
        self._rollouts = shop.run.log("rollouts", Rollout)
        self._dropped = shop.run.log("dropped", Dropped)

    def task(self, ticket: Ticket) -> Task:
        """The task of a ticket's group, which is opened where it is new."""
        if ticket.group not in self.tasks:
            index, self.tasks[ticket.group] = self.choice.next(ticket.domain)
            self._samples[ticket.group] = {}
            self._opened.append(Opened(group=ticket.group, domain=ticket.domain, index=index))
        return self.tasks[ticket.group]

    def record(self, ticket: Ticket, trace: Trace) -> None:
        """The attempt at this sample ended well, and its trace and verdicts are stored."""
        self._rollouts.append(Rollout(group=ticket.group, slot=ticket.slot, trace=trace.id))

    def keep(self, ticket: Ticket, trace: Trace, verdicts: Collection[Verdict]) -> None:
        """What is recorded of a sample is at hand for its group, unless that is gone."""
        if ticket.group in self._samples:
            self._samples[ticket.group][ticket.slot] = tuple(Sample(trace, v, v.leaf) for v in verdicts)

    def group(self, number: int) -> Group:
        task, samples = self.tasks[number], self._samples[number]
        return Group(task.id, task.domain, tuple(s for slot in sorted(samples) for s in samples[slot]))

    def drop(self, number: int, step: int = -1) -> None:
        self._dropped.append(Dropped(group=number, step=step))
        self.forget(number)

    def forget(self, number: int) -> None:
        """The group was trained, or never will be."""
        self.tasks.pop(number, None)
        self._samples.pop(number, None)

    def restore(self, pacing: Pacing, trained: Collection[int]) -> None:
        """Groups that were open when the last process ended, with their rollouts, here and in `pacing`."""
        groups = {o.group: o for o in self._opened}
        for record in groups.values():
            self.choice.seen(record.domain, record.index)
            pacing.next_group = max(pacing.next_group, record.group + 1)
        pacing.refilled.update(d.step for d in self._dropped)
        gone = {*trained, *(d.group for d in self._dropped)}
        left = {g: o for g, o in groups.items() if g not in gone}
        self._read(left.keys(), groups, set(trained), pacing)
        if not left:
            return
        names = {named(n, s) for n in left for s in range(pacing.config.group) if s not in self._samples.get(n, ())}
        for said in self.shop.run.log("turns", Said):
            if said.trace in names:
                self.said[said.trace] = [*self.said.get(said.trace, [])[: said.turn], said.reply]
        for number, record in sorted(left.items()):
            self.tasks[number] = self.choice.resumed(record.domain, record.index)
            done = self._samples.setdefault(number, {})
            versions = {slot: s[0].trace.oldest_version for slot, s in done.items()}
            begun = {s: oldest(r) for s in range(pacing.config.group) if (r := self.said.get(named(number, s)))}
            pacing.restore(number, record.domain, versions, begun)
        finished = sum(len(self._samples[number]) for number in left)
        self.shop.event("resumed", "rl", f"{finished} finished rollouts of {len(left)} open groups are kept")

    def _read(self, left: Collection[int], groups: dict[int, Opened], trained: set[int], pacing: Pacing) -> None:
        """Samples of the groups that are left; and domains are credited with what was trained."""
        records = {r.trace: r for r in self._rollouts}
        traces: dict[str, Trace] = {}
        used = dict.fromkeys(trained & groups.keys(), 0)  # tokens
        for trace in self.shop.run.traces:
            if trace.id not in records:
                continue
            if records[trace.id].group in left:
                traces[trace.id] = trace
            elif records[trace.id].group in used:
                used[records[trace.id].group] += trace.cost.tokens_out
        for number, tokens in used.items():
            pacing.shares.credit(groups[number].domain, tokens)
        verdicts: dict[str, dict[int, Verdict]] = {}
        for verdict in self.shop.run.verdicts:
            if verdict.trace in traces:
                verdicts.setdefault(verdict.trace, {})[verdict.leaf] = verdict
        for name, trace in traces.items():
            leaves = {-1, *trace.leaves} if len(trace.leaves) == 1 else trace.leaves  # not those of an earlier attempt
            samples = tuple(Sample(trace, v, leaf) for leaf, v in sorted(verdicts[name].items()) if leaf in leaves)
            self._samples.setdefault(records[name].group, {})[records[name].slot] = samples


def named(group: int, slot: int, attempt: int = 0) -> str:
    """The trace of an attempt at a sample."""
    return f"rl-{group}-{slot}-{attempt}"


def teaches(group: Group) -> bool:
    """Whether its graded samples differ."""
    return len({s.verdict.reward for s in group.samples if not s.verdict.masked}) > 1


def traces(group: Group) -> list[Trace]:
    """Of its samples, some of which may be leaves of one."""
    return list({s.trace.id: s.trace for s in group.samples}.values())
