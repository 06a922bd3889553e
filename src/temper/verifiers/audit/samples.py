"""Answers of models to a domain's tasks, whose grades a second rule has decided: cases that no author thought of.

They lie beside the card, in `cards/NAME.samples.jsonl.gz`, a line each. A second rule is the domain's own, `async
second_opinion(task, case, bench) -> bool | None`. It shares no code with the verifier, and says None where it cannot
decide; such answers are left out.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from temper.core.blame import FaultError
from temper.core.protocols import Domain
from temper.core.task import Case, SandboxSpec, Task
from temper.verifiers import boxes
from temper.verifiers.audit import cards
from temper.verifiers.audit.bench import Bench
from temper.verifiers.pool import LimitError

_PATIENCE = 1000  # tasks without one that is looked for, after which a stream is given up
_SCREENS = "temper.verifiers.audit.screens"
_SECONDS = 5.0


class Sample(Struct, frozen=True, kw_only=True):
    """An answer, the task's id, and the level and seed of the stream that the task is in."""

    seed: int
    level: int
    task: str
    case: Case

    @property
    def content(self) -> tuple[str, bytes]:
        """What makes it another one than the next."""
        return self.task, msgspec.json.encode((self.case.answer, self.case.artifacts), order="deterministic")


def path(module: ModuleType) -> Path:
    return cards.path(module).with_suffix(".samples.jsonl.gz")


def save(module: ModuleType, samples: Sequence[Sample]) -> None:
    lines = [msgspec.json.encode(sample) + b"\n" for sample in samples]
    cards.write(path(module), gzip.compress(b"".join(lines), mtime=0))


def kept(module: ModuleType) -> list[Sample]:
    try:
        lines = gzip.decompress(path(module).read_bytes()).splitlines()
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=Sample) for line in lines]


def load(module: ModuleType, domain: Domain) -> list[tuple[Task, Case]]:
    """The kept samples with their tasks; those whose task the domain no longer makes are left out."""
    samples = kept(module)
    tasks: dict[str, Task] = {}
    for seed, level in {(sample.seed, sample.level) for sample in samples}:
        ids = {sample.task for sample in samples if (sample.seed, sample.level) == (seed, level)}
        tasks |= found(domain, level, seed, ids)
    return [(tasks[sample.task], sample.case) for sample in samples if sample.task in tasks]


def found(domain: Domain, level: int, seed: int, ids: set[str]) -> dict[str, Task]:
    """Tasks of a run by their ids. A run takes them from the beginning of its streams, so that they are soon found."""
    tasks: dict[str, Task] = {}
    for split in ("heldout", "train"):
        missed = 0
        for task in domain.tasks(split, level, seed):
            if task.id in ids:
                tasks[task.id], missed = task, 0
            missed += 1
            if len(tasks) == len(ids) or missed > _PATIENCE:
                break
    return tasks


async def opinion(bench: Bench, task: Task, case: Case) -> bool | None:
    """Whether the answer is right, by the domain's second rule; None where it cannot tell, or there is none."""
    rule = getattr(bench.domain, "second_opinion", None)
    try:
        return await rule(task, case, bench) if rule else None
    except (LimitError, FaultError):
        return None


async def differs(
    bench: Bench, task: Task, gold: Mapping[str, str], given: Mapping[str, bytes], module: str, calls: Sequence[Any]
) -> bool:
    """Whether a model's program gives other values than ours, on many more calls than these; in a sandbox.

    What the program does to its process makes it differ. Files that neither gives are the task's.
    """
    start = task.sandbox.files if task.sandbox else {}
    untouched = {name: content.decode() for name, content in start.items() if name.endswith(".py")}
    theirs = untouched | {name: content.decode("utf-8", "replace") for name, content in given.items()}
    stdin, nonce = boxes.job(question=[{**untouched, **gold}, theirs, boxes.dotted(module), calls])
    spec = replace(task.sandbox or SandboxSpec(), files={})
    program = boxes.program(_SCREENS) + "\nmain()"
    done = await boxes.run(bench.sandboxes, spec, program, boxes.Interpreter(), stdin=stdin, seconds=_SECONDS)
    report = boxes.report(done, nonce)
    return not report or report["differs"]
