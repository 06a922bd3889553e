"""Streams of generated tasks: seeded, without duplicates, with splits that no seed can mix.

A family draws `Draft`s; `stream` turns them into tasks. A draft's `identity` names what decides its answer (the
calculation, the gold query, the repair, the calls) and leaves out decoration (names, phrasing, rows). The split is a
hash of the identity, so that a held-out task is never a training task in other words. The task's id is a hash of
what is asked, and the same task has the same id under every seed.

What a family looks like to the model, its world and its grader are the family's own.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from temper.core.errors import ConfigError
from temper.core.task import Provenance, Split, Task

LEVELS = (1, 2, 3)
HELDOUT = 0.2  # share of the identities that no training stream contains
_PATIENCE = 20_000  # draws without a new task after which a stream ends


class Draft(Struct, frozen=True):
    """A task to be: what decides its answer, all that is asked, and how to make it.

    `build` gives the task without id, split, level and provenance; what it draws (rows, hidden cases) comes from the
    generator it is given, so that it depends on `asked` alone.
    """

    identity: str
    asked: str
    build: Callable[[random.Random], Task]


def stream(
    name: str, draw: Callable[[random.Random, int], Draft], split: Split, level: int, seed: int
) -> Iterator[Task]:
    """Tasks of one split and level in an order that `seed` decides; it ends when `draw` has nothing new to give."""
    if level not in LEVELS:
        raise ConfigError(f"domain {name!r}: expected a level of {LEVELS}, got {level!r}")
    rng = random.Random(f"{name}/{split}/{level}/{seed}")
    seen: set[str] = set()
    missed = 0
    while missed < _PATIENCE:
        missed += 1
        draft = draw(rng, level)
        id = f"{name}-{level}-{hashlib.sha256(draft.asked.encode()).hexdigest()[:16]}"
        if id in seen or split_of(f"{name}/{draft.identity}") != split:
            continue
        missed = 0
        seen.add(id)
        provenance = Provenance(source=f"temper.domains.{name}", seed=seed)
        task = draft.build(random.Random(id))
        yield msgspec.structs.replace(task, id=id, domain=name, split=split, level=level, provenance=provenance)


def split_of(identity: str) -> Split:
    """The split to which an identity belongs, whatever the seed."""
    share = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8]) / 2**64
    return "heldout" if share < HELDOUT else "train"
