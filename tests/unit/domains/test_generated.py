import itertools
import random

import pytest

from temper.core.errors import ConfigError
from temper.core.task import Message, Task
from temper.domains.generated import HELDOUT, Draft, split_of, stream


def numbered(rng: random.Random, level: int) -> Draft:
    n = rng.randrange(50)
    return Draft(str(n), f"number {n}", lambda rng: Task(id="", domain="", messages=(Message("user", f"number {n}"),)))


def test_a_fifth_of_the_identities_is_held_out():
    held = sum(split_of(f"task {n}") == "heldout" for n in range(10_000)) / 10_000
    assert abs(held - HELDOUT) < 0.02  # five standard deviations of a binomial


def test_a_stream_ends_when_everything_was_given_and_the_splits_are_a_partition():
    train, heldout = (list(stream("numbered", numbered, split, 1, 0)) for split in ("train", "heldout"))
    assert len(train) + len(heldout) == 50
    assert {t.messages for t in train}.isdisjoint(t.messages for t in heldout)


def test_a_task_knows_where_it_comes_from():
    (task,) = itertools.islice(stream("numbered", numbered, "train", 2, 9), 1)
    assert (task.domain, task.split, task.level) == ("numbered", "train", 2)
    assert (task.provenance.source, task.provenance.seed) == ("temper.domains.numbered", 9)


def test_an_unknown_level_is_refused():
    with pytest.raises(ConfigError, match="level of"):
        next(stream("numbered", numbered, "train", 4, 0))
