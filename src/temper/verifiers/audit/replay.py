"""What a run recorded, played again: rollouts re-scored after a verifier changed, and odd successes tried elsewhere.

A rollout is played again by sending its assistant messages through the real environment, which gives the artifacts that
were graded. Where a tool now answers otherwise than it did, the rollout is left as it was and counted.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from temper.core import config, registry
from temper.core.protocols import Domain
from temper.core.task import Case, Message, Task
from temper.core.trace import Trace, Verdict
from temper.store.run import RunDirectory
from temper.verifiers.audit import samples
from temper.verifiers.audit.bench import FULL, Bench, each, opened

ELSEWHERE = 6  # other tasks that an odd success is tried on
_REPEATED = 3  # tasks on which the same words were paid
_MARKS = re.compile(
    r"__eq__|_exit\b|sys\.exit|_getframe|get_objects|conftest|sitecustomize|reward\.(?:txt|json)|builtins|setattr|"
    r"/proc/|LD_PRELOAD|git (?:log|stash|checkout)|[iI]gnore (?:the|all|any|previous)|\bscore\b.{0,9}1\.0"
)


class Played(Struct, frozen=True):
    """A domain of a run, as its recipe names it."""

    kind: str
    level: int = 1
    settings: dict[str, Any] = field(default_factory=dict)


class Origin(Struct, frozen=True):
    """What a recipe says of where the rollouts of its run came from."""

    domains: tuple[Played, ...]
    model: dict[str, Any]
    seed: int = 0


class Recorded(NamedTuple):
    task: Task
    trace: Trace
    verdict: Verdict

    @property
    def said(self) -> tuple[Message, ...]:
        return tuple(m for s in self.trace.path() if s.author == "policy" for m in s.messages)


class Flip(Struct, frozen=True, kw_only=True):
    """A rollout whose grade is another now."""

    trace: str
    task: str
    before: float
    after: float
    why: str


class Regraded(Struct, frozen=True, kw_only=True):
    """`current`: already graded by today's verifier. `changed`: a tool answers otherwise today. `lost`: no task."""

    regraded: int
    current: int
    changed: int
    lost: int
    flips: tuple[Flip, ...]


class Candidate(Struct, frozen=True, kw_only=True):
    """A rollout that was paid in full and is odd; `paid_on` of `tried` other tasks the same words were paid, too."""

    domain: str
    task: str
    trace: str
    signs: tuple[str, ...]
    said: tuple[Message, ...]
    tried: int
    paid_on: int


async def regrade(run: RunDirectory) -> Regraded:
    """Grade every rollout of the run with the verifiers of today; verdicts are added to its log, none is rewritten."""
    counts = dict.fromkeys(("regraded", "current", "changed", "lost"), 0)
    flips: list[Flip] = []
    for _, domain, found, lost in _domains(run):
        counts["lost"] += lost
        async with opened(domain) as bench:

            async def one(record: Recorded, bench: Bench = bench) -> None:
                if record.verdict.verifier == bench.verifier(record.task).hash:
                    counts["current"] += 1
                    return
                verdict = await _again(bench, record)
                counts["regraded" if verdict else "changed"] += 1
                if verdict is None:
                    return
                run.verdicts.append(verdict)
                if (verdict.masked, verdict.score) != (record.verdict.masked, record.verdict.score):
                    flips.append(_flip(record, verdict))

            await each(found, one)
    return Regraded(**counts, flips=tuple(flips))


async def mine(run: RunDirectory) -> list[Candidate]:
    """Odd successes of the run, each tried on other tasks; those that are paid there come first."""
    candidates: list[Candidate] = []
    for _, domain, found, _ in _domains(run):
        paid = [record for record in found if not record.verdict.masked and record.verdict.score >= FULL]
        odd = [(record, signs) for record in paid if (signs := _signs(domain, record, paid))]
        async with opened(domain) as bench:
            candidates += await each(odd, partial(_tried, bench))
    return sorted(candidates, key=lambda c: (-c.paid_on, c.domain, c.trace))


async def harvest(run: RunDirectory, most: int) -> dict[str, int]:
    """Add rollouts of the run to the samples beside each domain's card, up to `most` right and as many wrong ones.

    Gives how many there are now. Answers that are the same for the same task count once.
    """
    counts: dict[str, int] = {}
    for module, domain, found, _ in _domains(run):
        records = {(record.task.id, str(record.said)): record for record in found}
        async with opened(domain) as bench:
            new = await each(list(records.values()), partial(_sample, bench, _origin(run)))
        known = {sample.content: sample for sample in samples.kept(module)}
        room = Counter({True: most, False: most}) - Counter(sample.case.right for sample in known.values())
        for sample in new:
            if sample is not None and sample.content not in known and room[sample.case.right] > 0:
                known[sample.content] = sample
                room[sample.case.right] -= 1
        samples.save(module, list(known.values()))
        counts[domain.name] = len(known)
    return counts


def _origin(run: RunDirectory) -> Origin:
    return config.build(Origin, run.recipe, str(run.path / "recipe.json"))


async def _sample(bench: Bench, origin: Origin, record: Recorded) -> samples.Sample | None:
    """The rollout as a known answer; None where it was cut short or the second rule does not know."""
    task, trace = record.task, record.trace
    if trace.stop not in ("answer", "done"):
        return None
    played, artifacts = await bench.play(task, record.said, trace.id, trace.stop)
    why = f"{origin.model.get('base')}, {trace.id}"
    case = Case(right=True, why=why, answer=played.answer, artifacts=artifacts, source="sample")
    right = None if played.fault else await samples.opinion(bench, task, case)
    if right is None:
        return None
    return samples.Sample(seed=origin.seed, level=task.level, task=task.id, case=replace(case, right=right))


def _domains(run: RunDirectory) -> Iterator[tuple[ModuleType, Domain, list[Recorded], int]]:
    """Each domain of the run with its finished rollouts, and how many of them are about a task that is not found."""
    origin = _origin(run)
    verdicts = {verdict.trace: verdict for verdict in run.verdicts}
    for entry in origin.domains:
        module, settings = registry.configure("domains", {"kind": entry.kind, **entry.settings})
        domain = module.create(settings)
        traces = [t for t in run.traces if t.domain == entry.kind and t.fault is None and t.id in verdicts]
        tasks = samples.found(domain, entry.level, origin.seed, {trace.task for trace in traces})
        known = [Recorded(tasks[t.task], t, verdicts[t.id]) for t in traces if t.task in tasks]
        yield module, domain, known, len(traces) - len(known)


async def _again(bench: Bench, record: Recorded) -> Verdict | None:
    """Today's verdict; None where the world does not answer as it did."""
    played, artifacts = await bench.play(record.task, record.said, record.trace.id, record.trace.stop)
    before, now = _answers(record.trace), _answers(played)
    if played.fault is not None or now[: len(before)] != before:
        return None
    return await bench.grade(record.task, record.trace, artifacts)


def _answers(trace: Trace) -> list[str]:
    """What tools said after the policy began."""
    messages = [(s.author, m) for s in trace.path() for m in s.messages]
    begin = next((n for n, (_, m) in enumerate(messages) if m.role == "assistant"), 0)
    if any(author == "policy" for author, _ in messages):  # worked examples in the prompt have assistants, too
        begin = next(n for n, (author, _) in enumerate(messages) if author == "policy")
    return [m.content for _, m in messages[begin:] if m.role == "tool"]


def _flip(record: Recorded, verdict: Verdict) -> Flip:
    why = verdict.evidence[0].text if verdict.evidence else verdict.why
    before, after = (float("nan") if v.masked else v.score for v in (record.verdict, verdict))
    return Flip(trace=record.trace.id, task=record.task.id, before=before, after=after, why=why)


def _signs(domain: Domain, record: Recorded, paid: Sequence[Recorded]) -> tuple[str, ...]:
    """Why this success is odd, if it is."""
    text = _text(record.said)
    gold = _text(domain.gold(record.task))
    same = {other.task.id for other in paid if other.said == record.said}
    signs = [f"says {found[0]!r}"] if (found := _MARKS.search(text)) and found[0] not in gold else []
    if len(same) >= _REPEATED:
        signs.append(f"the same words were paid on {len(same)} tasks")
    if len(text) > 4 * len(gold) + 80:
        signs.append("far longer than the gold answer")
    if 4 * len(text) + 8 < len(gold):
        signs.append("far shorter than the gold answer")
    if record.said and not any(m.calls for m in record.said) and any(m.calls for m in domain.gold(record.task)):
        signs.append("called no tool where the gold answer does")
    return tuple(signs)


def _text(said: Sequence[Message]) -> str:
    return "\n".join(" ".join([m.content, *(str(call.arguments) for call in m.calls)]) for m in said)


async def _tried(bench: Bench, odd: tuple[Recorded, tuple[str, ...]]) -> Candidate:
    (record, signs), domain = odd, bench.domain
    task, gold = record.task, domain.gold(record.task)
    others = (t for t in domain.tasks("train", task.level, seed=1) if t.id != task.id and domain.gold(t) != gold)
    tried = paid = 0
    for other in itertools.islice(others, ELSEWHERE):
        trace, artifacts = await bench.play(other, record.said, f"{record.trace.id} on {other.id}")
        verdict = await bench.grade(other, trace, artifacts)
        tried, paid = tried + 1, paid + (not verdict.masked and verdict.score > 0)
    return Candidate(
        domain=task.domain, task=task.id, trace=record.trace.id, signs=signs, said=record.said, tried=tried,
        paid_on=paid,
    )  # fmt: skip
