"""The frozen order: whoever ends first, the same versions sample the same groups, and the same steps train them."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.core.errors import ConfigError
from temper.scheduling.pacing import Config, Pacing, Ticket, Wait
from temper.scheduling.waves import Waves

SHARES = {"a": 1, "b": 3}
STEPS = 5


def flat(group: int) -> bool:
    """Some of the groups teach nothing."""
    return group * 2654435761 % 7 < 3


class Run:
    """A run of `Waves` in which samples end in a random order; it can be lost, and goes on from what was recorded."""

    def __init__(self, config: Config, seed: int, resample: bool, kind: type[Pacing] = Waves) -> None:
        self.kind = kind
        self.config, self.rng, self.resample = config, random.Random(seed), resample
        self.opened: dict[int, str] = {}
        self.finished: dict[int, dict[int, int]] = {}  # by group and slot: version, -1 where nothing was sampled
        self.dropped: dict[int, int] = {}  # group: step
        self.saved: list[list[int]] = []  # batches of the steps whose checkpoint is there
        self.begin()

    def begin(self) -> None:
        self.pacing = self.kind(self.config, SHARES, len(self.saved), STEPS)
        self.batches = [list(batch) for batch in self.saved]
        self.running: list[Ticket] = []
        self.pacing.next_group = max(self.opened, default=-1) + 1
        self.pacing.refilled.update(self.dropped.values())
        trained = {group for batch in self.saved for group in batch}
        for group in sorted(self.opened.keys() - trained - self.dropped.keys()):
            self.pacing.restore(group, self.opened[group], self.finished.get(group, {}))
        self.settle_all()

    def settle_all(self) -> None:
        for group in list(self.pacing.groups):
            self.settle(group)

    def settle(self, group: int) -> None:
        if self.resample and group in self.pacing.groups and self.pacing.groups[group].complete:
            step = self.pacing.due(group)
            self.dropped |= dict.fromkeys(self.pacing.refill(group, flat(group)), step)

    def turn(self, checkpoint: bool) -> None:
        """Start what may start; then a step, or one sample ends."""
        while isinstance(ticket := self.pacing.admit(), Ticket):
            self.opened.setdefault(ticket.group, ticket.domain)
            self.running.append(ticket)
        chosen = self.pacing.batch()
        if isinstance(chosen, Wait):
            ticket = self.running.pop(self.rng.randrange(len(self.running)))
            oldest = -1 if (ticket.group + ticket.slot) % 5 == 0 else self.pacing.version  # some say nothing
            self.finished.setdefault(ticket.group, {})[ticket.slot] = oldest
            self.pacing.finished(ticket, oldest)
            self.settle(ticket.group)
            return
        assert not self.running or not isinstance(self.pacing, Waves)
        self.batches.append(chosen)
        self.pacing.trained(chosen)
        self.settle_all()
        if checkpoint:
            self.saved = [list(batch) for batch in self.batches]

    def all(self, crashes: float = 0.0) -> tuple:
        while self.pacing.version < STEPS:
            if self.rng.random() < crashes:
                self.begin()
            self.turn(checkpoint=self.rng.random() < 0.7)
        return self.batches, self.opened, self.dropped, {g: self.finished[g] for b in self.batches for g in b}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2), st.integers(1, 3), st.integers(1, 4), st.booleans(), st.integers(0, 1000))
def test_whatever_ends_first_and_however_often_it_is_lost_the_run_is_the_same(eta, groups, size, resample, seed):
    config = Config(batch=groups * size, group=size, eta=eta, refill=1)
    expected = Run(config, 0, resample).all()
    assert Run(config, seed, resample).all() == expected
    assert Run(config, seed, resample).all(crashes=0.1) == expected


@pytest.mark.parametrize("eta", [0, 1, 2])
def test_every_step_is_sampled_by_one_version_eta_steps_before(eta):
    batches, _, _, versions = Run(Config(batch=8, group=4, eta=eta), 1, False).all()
    assert batches == [[2 * n, 2 * n + 1] for n in range(STEPS)]
    for step, batch in enumerate(batches):
        assert {v for group in batch for v in versions[group].values()} - {-1} == {max(0, step - eta)}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2), st.integers(1, 3), st.integers(1, 4), st.booleans(), st.integers(0, 1000))
def test_without_a_frozen_order_lost_steps_leave_no_hold_that_nothing_ends(eta, groups, size, resample, seed):
    config = Config(batch=groups * size, group=size, eta=eta, refill=1)
    batches, _, dropped, _ = Run(config, seed, resample, Pacing).all(crashes=0.1)
    trained = [group for batch in batches for group in batch]
    assert len(trained) == len(set(trained)) == STEPS * groups
    assert not dropped.keys() & set(trained)


def test_groups_that_teach_nothing_are_replaced_in_order_up_to_the_limit():
    batches, opened, dropped, _ = Run(Config(batch=8, group=4, eta=0, refill=2), 2, True).all()
    for step, batch in enumerate(batches):
        replaced = [group for group, at in dropped.items() if at == step]
        assert len(replaced) <= 2 * 2
        assert not any(map(flat, batch)) or len(replaced) == 2 * 2
    assert all(map(flat, dropped))
    assert opened.keys() == {g for batch in batches for g in batch} | dropped.keys()


def test_domains_take_turns_by_their_shares_of_groups():
    _, opened, _, _ = Run(Config(batch=16, group=2, eta=1), 3, False).all()
    assert [*opened.values()].count("b") == pytest.approx(0.75 * len(opened), abs=1)


def test_what_would_be_cancelled_is_refused():
    with pytest.raises(ConfigError, match="spare"):
        Waves(Config(spare=0.5), SHARES)
