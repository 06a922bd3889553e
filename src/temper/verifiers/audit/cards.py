"""Error cards: what an audit measured of a domain and its verifier, and whether that still holds.

The card of `domains/NAME.py` is `domains/cards/NAME.json`; a domain of yours has its card beside it in the same way. It
is current while verifiers, tasks and licences hash to what they were when it was measured. The trainer asks `problem`.
"""

from __future__ import annotations

import hashlib
import html
import itertools
from collections.abc import Mapping, Sequence
from math import nan, sqrt
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from msgspec import Struct

from temper.core import registry
from temper.core.protocols import Domain
from temper.store.disk import disk_errors, write_file
from temper.verifiers.pool import Pool

FALSE_POSITIVES, FALSE_NEGATIVES = 0.015, 0.025  # what the upper ends of the intervals may be
DISTINCT = 250  # tasks each way, fewer are named as such
_HASHED = 20  # tasks of each level that stand for the data
_Z = 1.959963984540054


class Rate(Struct, frozen=True, kw_only=True):
    """How often the verifier errs on `cases` answers to `tasks` tasks, with a 95 % interval clustered by task."""

    rate: float
    low: float
    high: float
    tasks: int
    cases: int


class Identity(Struct, frozen=True, kw_only=True):
    """What was audited, by content: a verifier's name to its hash, the tasks, and their licences."""

    verifiers: dict[str, str]
    data: str
    licences: tuple[str, ...]


class Failure(Struct, frozen=True, kw_only=True):
    """A known answer that was graded wrongly, an attack that was not held, or a trial that did not end as it should."""

    task: str
    what: str
    found: str


class Card(Struct, frozen=True, kw_only=True):
    """`attacks`: by name, how many of the tried ones were held. `sources`: cases by who vouches for their grade.

    `trials`: determinism and injected faults, with "" where they held, else what went wrong. `latency_ms`: of one
    grading while the audit ran, `at_once` of them at a time.
    """

    domain: str
    identity: Identity
    tasks: int
    false_positives: Rate
    false_negatives: Rate
    attacks: dict[str, tuple[int, int]]
    sources: dict[str, int]
    trials: dict[str, str]
    latency_ms: dict[str, float]
    failures: tuple[Failure, ...] = ()

    @property
    def attacks_held(self) -> float:
        held, tried = (sum(counts) for counts in zip(*self.attacks.values(), strict=True)) if self.attacks else (0, 0)
        return held / tried if tried else nan

    @property
    def outside_share(self) -> float:
        """Cases from outsiders, or from model samples that a second rule has judged."""
        return 1 - self.sources.get("author", 0) / max(1, sum(self.sources.values()))

    def shortfall(self) -> str:
        """Why what was measured is not good enough to train on, "" when it is."""
        short = []
        for name, rate, most in (
            ("false positives", self.false_positives, FALSE_POSITIVES),
            ("false negatives", self.false_negatives, FALSE_NEGATIVES),
        ):
            if not rate.high <= most:
                short.append(f"{name} may be {rate.high:.2%} (at most {most:.1%}; {rate.tasks} tasks)")
        if self.attacks_held != 1:
            short.append(f"held {self.attacks_held:.1%} of the attacks")
        short += [f"{name}: {why}" for name, why in self.trials.items() if why]
        return "; ".join(short)


def rate(errors: Mapping[str, Sequence[bool]]) -> Rate:
    """From the errors by task. A task counts once, by its share of errors, since its mutations are not independent.

    Wilson's score interval over tasks (Wilson 1927; method 3 of Newcombe, Statistics in Medicine 17, 1998).
    """
    n, cases = len(errors), sum(map(len, errors.values()))
    if not n:
        return Rate(rate=nan, low=0.0, high=1.0, tasks=0, cases=0)
    p = sum(sum(wrong) / len(wrong) for wrong in errors.values()) / n
    middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * sqrt(p * (1 - p) / n + _Z**2 / (4 * n * n)) / (1 + _Z**2 / n)
    return Rate(rate=p, low=max(0.0, middle - half), high=min(1.0, middle + half), tasks=n, cases=cases)


def problem(kind: str, settings: Mapping[str, Any] | None = None) -> str:
    """Why the domain may not be trained on without being named as an exception, "" when its card allows it."""
    module, config = registry.configure("domains", {"kind": kind, **(settings or {})})
    card = load(module)
    if card is None:
        return "it was never audited"
    found = identity(module.create(config))
    if changed := [part for part in found.__struct_fields__ if getattr(found, part) != getattr(card.identity, part)]:
        return f"since its audit it has changed: {', '.join(changed)}"
    return card.shortfall()


def identity(domain: Domain) -> Identity:
    digest, licences = hashlib.sha256(), set()
    asked: dict[bytes, tuple[str, Mapping[str, Any]]] = {}
    for level in domain.levels:
        for task in itertools.islice(domain.tasks("train", level), _HASHED):
            digest.update(msgspec.json.encode(task, order="deterministic"))
            licences.add(task.provenance.licence if task.provenance else "unknown")
            verifier = domain.verifier(task)
            asked[msgspec.json.encode(verifier, order="deterministic")] = verifier
    hashes: dict[str, list[str]] = {}
    for name, settings in asked.values():
        module, config = registry.configure("verifiers", {"kind": name, **settings})
        hashes.setdefault(name, []).append(module.create(config, Pool(), None).hash)
    verifiers = {name: "+".join(sorted(found)) for name, found in sorted(hashes.items())}
    return Identity(verifiers=verifiers, data=digest.hexdigest()[:16], licences=tuple(sorted(licences)))


def path(module: ModuleType) -> Path:
    """Where the card of a domain's module is."""
    here = Path(str(module.__file__))
    folder = here.parent.parent if here.name == "__init__.py" else here.parent
    return folder / "cards" / f"{module.__name__.rpartition('.')[2]}.json"


def load(module: ModuleType) -> Card | None:
    try:
        return msgspec.json.decode(path(module).read_bytes(), type=Card)
    except (FileNotFoundError, msgspec.DecodeError):  # an older form counts as none
        return None


def save(module: ModuleType, card: Card) -> None:
    """Raises BackendError where the disk or its permissions do not let it be kept."""
    write(path(module), msgspec.json.format(msgspec.json.encode(card), indent=1) + b"\n")


def write(file: Path, content: bytes) -> None:
    with disk_errors(file):
        file.parent.mkdir(exist_ok=True)
        write_file(file, content)


def summary(cards: Mapping[str, Card], commit: str) -> bytes:
    """All cards and the worst of each figure, as JSON."""
    each = list(cards.values())
    ways = [rate for card in each for rate in (card.false_positives, card.false_negatives)]
    metrics = {
        "fpr_high_max": max((card.false_positives.high for card in each), default=nan),
        "fnr_high_max": max((card.false_negatives.high for card in each), default=nan),
        "attacks_held_min": min((card.attacks_held for card in each), default=nan),
        "distinct_tasks_min": min((rate.tasks for rate in ways), default=0),
        "outside_share_min": min((card.outside_share for card in each), default=nan),
    }
    tree = {"metrics": metrics, "verifiers": cards, "commit": commit}
    return msgspec.json.format(msgspec.json.encode(tree), indent=1) + b"\n"


def page(card: Card) -> str:
    """The card as Markdown. What came out of tasks and graders is escaped."""
    rows = [("verifier", ", ".join(f"{name} `{hash}`" for name, hash in card.identity.verifiers.items()))]
    rows.append(("tasks", f"{card.tasks}, data `{card.identity.data}`, licence {', '.join(card.identity.licences)}"))
    for name, found in (("false positives", card.false_positives), ("false negatives", card.false_negatives)):
        bounds = f"{found.low:.2%} to {found.high:.2%}"
        rows.append((name, f"{found.rate:.2%} ({bounds}) on {found.cases} answers to {found.tasks} tasks"))
    held = [f"{name} {n - kept} of {n} not held" for name, (kept, n) in card.attacks.items() if kept < n]
    tried = sum(n for _, n in card.attacks.values())
    rows.append(("attacks held", f"{card.attacks_held:.1%} of {tried}, {len(card.attacks)} kinds; {', '.join(held)}"))
    rows += [(name, why or "held") for name, why in card.trials.items()]
    rows.append(("latency", ", ".join(f"{name} {value:.1f} ms" for name, value in card.latency_ms.items())))
    rows.append(("answers by source", ", ".join(f"{name} {n}" for name, n in card.sources.items())))
    if min(card.false_positives.tasks, card.false_negatives.tasks) < DISTINCT:
        rows.append(("caution", f"fewer than {DISTINCT} distinct tasks one way or the other"))
    lines = [f"# Error card of {card.domain}", "", "| what | measured |", "|---|---|"]
    lines += [f"| {name} | {_cell(text)} |" for name, text in rows]
    lines += ["", f"**{_cell(card.shortfall() or 'Fit to train on.')}**"]
    if card.failures:
        lines += ["", "| task | what | found |", "|---|---|---|"]
        lines += [f"| {_cell(f.task)} | {_cell(f.what)} | {_cell(f.found)} |" for f in card.failures]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return html.escape(text[:300], quote=False).replace("|", "&#124;").replace("\n", " ")
