"""`temper check verifier`: the contract of a verifier, on its own specimen and on the domains that use it.

A verifier may define `specimen() -> (task, cases)`: a task with answers whose grades are known, right ones first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from temper.core import registry
from temper.core.errors import ConfigError
from temper.core.task import Case, Task
from temper.verifiers.audit import attacks
from temper.verifiers.audit.bench import Bench, opened
from temper.verifiers.audit.measure import Graded, measure
from temper.verifiers.audit.trials import Example, under_kills, verdicts

_TASKS = 30  # of each domain that uses the verifier
_KILLS = 5


class Finding(NamedTuple):
    """`why` is "" where the contract is kept."""

    what: str
    why: str


Specimen = tuple[Task, Sequence[Case]]


async def examine(name: str, settings: Mapping[str, Any], specimen: Specimen | None = None) -> list[Finding]:
    """`specimen`: for a verifier that defines none. Raises ConfigError where there is nothing to try it on."""
    module = registry.find("verifiers", name)
    if hasattr(module, "specimen"):
        specimen = module.specimen()
    found: list[Finding] = []
    if specimen is not None:
        task, cases = specimen
        async with opened(_Only(name, settings), cached=0) as bench:  # type: ignore[arg-type]
            found += await _tried(bench, task, cases)
    for kind in _users(name):
        card = await measure(kind, count=_TASKS)
        wrong = [f"{f.task}, {f.what}: {f.found}" for f in card.failures]
        wrong += [f"{trial}: {why}" for trial, why in card.trials.items() if why]
        tried = f"{sum(card.sources.values())} answers, {len(card.attacks)} kinds of attack"
        found.append(Finding(f"domain {kind}: {tried}", "; ".join(wrong[:3])))
    if not found:
        raise ConfigError(f"nothing to try {name} on: define specimen() in it, or use it in a domain")
    return found


async def _tried(bench: Bench, task: Task, cases: Sequence[Case]) -> list[Finding]:
    verifier = bench.verifier(task)
    found = [Finding("a name, and a hash of its content", "" if verifier.name and len(verifier.hash) >= 16 else "none")]
    for case in cases:
        found.append(await _graded(bench, task, case, f"{'right' if case.right else 'wrong'}: {case.why}"))
    for reference in (None, {}, "text", 7):
        verdict = await bench.judge(replace(task, reference=reference), cases[0])
        why = "" if verdict.why == "reference-missing" else f"{verdict.why}, expected reference-missing"
        found.append(Finding(f"reference {reference!r} is the task's fault", why))
    for attack in _attacks(task, cases[0]):
        found.append(await _graded(bench, task, attack, f"attack: {attack.why}", attack=True))
    examples = [Example(task, case, await bench.judge(task, case)) for case in cases]
    same = [e.verdict for e in examples] == await verdicts(bench, examples)
    found.append(Finding("the same when repeated", "" if same else "another verdict"))
    return [*found, Finding("the same while workers are killed", await under_kills(bench, examples, _KILLS))]


async def _graded(bench: Bench, task: Task, case: Case, what: str, attack: bool = False) -> Finding:
    verdict = await bench.judge(task, case)
    erred = Graded(task, case, verdict, 0.0, attack).erred
    return Finding(what, f"{verdict.status} {verdict.score:g} ({verdict.why})" if erred else "")


def _attacks(task: Task, gold: Case) -> Iterator[Case]:
    if gold.artifacts:
        yield from attacks.delivered(task, gold, ())
    else:
        for name, text in attacks.TEXTS.items():
            yield Case(right=False, why=name, answer=text)


def _users(name: str) -> Iterator[str]:
    """Listed domains whose first task is graded by this verifier."""
    for kind in sorted(registry.names("domains")):
        module, config = registry.configure("domains", kind)
        domain = module.create(config)
        task = next(iter(domain.tasks("train", domain.levels[0])), None)
        if task is not None and domain.verifier(task)[0] == name:
            yield kind


class _Only:
    """As much of a domain as a bench needs to grade what is delivered."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        self._verifier = name, settings

    def verifier(self, task: Task) -> tuple[str, Mapping[str, Any]]:
        return self._verifier
