"""The bound on age, by replaying a long-tailed trace through the policy on a simulated clock."""

import heapq
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temper.core import config
from temper.core.errors import ConfigError
from temper.scheduling.pacing import Config, Pacing, Ticket, Wait


def replay(config: Config, steps: int, seed: int, failure: float = 0.0, step_time: float = 0.0) -> list[dict]:
    """Log-normal lengths (median 2,500 tokens, prompt sigma 0.8, sample sigma 0.5, cap 32,768: research notes, part B).

    Gives one record a trained group: version it was trained at, versions and lengths of its samples.
    """
    rng = random.Random(seed)
    pacing = Pacing(config, {"a": 1, "b": 3}, until=steps)
    clock, heap, scale, slots, records = 0.0, [], {}, {}, []
    while pacing.version < steps:
        while isinstance(ticket := pacing.admit(), Ticket):
            mean = scale.setdefault(ticket.group, 2500 * rng.lognormvariate(0, 0.8))
            length = min(32768, mean * rng.lognormvariate(0, 0.5))
            heapq.heappush(heap, (clock + length, id(ticket), ticket, pacing.version, length))
        chosen = pacing.batch()
        if isinstance(chosen, Wait):
            assert heap, f"deadlock: {chosen.why}"
            clock, _, ticket, version, length = heapq.heappop(heap)
            if rng.random() < failure:
                if pacing.failed(ticket).startswith("quarantined"):
                    slots.pop(ticket.group, None)
            elif ticket.group in pacing.groups:
                pacing.finished(ticket, version)
                slots.setdefault(ticket.group, {})[ticket.slot] = (version, length)
            continue
        for group in chosen:
            records.append({"at": pacing.version, "group": group, "samples": slots.pop(group)})
        clock += step_time
        pacing.trained(chosen)
    return records


@pytest.mark.parametrize("eta", [0, 1, 2, 4])
def test_no_token_of_a_long_tailed_trace_is_trained_above_eta(eta):
    records = replay(Config(batch=64, group=8, eta=eta), steps=60, seed=eta)
    ages = [r["at"] - version for r in records for version, _ in r["samples"].values()]
    assert max(ages) <= eta
    assert len({r["group"] for r in records}) == len(records) == 60 * 8
    assert all(len(r["samples"]) == 8 for r in records)


def test_failures_are_retried_one_by_one_and_the_bound_holds():
    records = replay(Config(batch=32, group=8, eta=2), steps=60, seed=3, failure=0.05)
    assert max(r["at"] - v for r in records for v, _ in r["samples"].values()) <= 2


@settings(max_examples=60, deadline=None)
@given(
    groups=st.integers(1, 6), size=st.integers(1, 5), eta=st.integers(0, 4), capacity=st.integers(0, 20),
    seed=st.integers(0, 10**6), failure=st.sampled_from([0.0, 0.3]),
)  # fmt: skip
def test_any_setting_keeps_the_bound_and_never_deadlocks(groups, size, eta, capacity, seed, failure):
    config = Config(batch=groups * size, group=size, eta=eta, capacity=capacity)
    for record in replay(config, steps=12, seed=seed, failure=failure):
        assert all(0 <= record["at"] - v <= eta for v, _ in record["samples"].values())


def test_gate_gives_the_published_number_of_slots():
    """AReaL tests/test_staleness_manager.py: B 4, eta 2, version 0 admits 12."""
    pacing = Pacing(Config(batch=4, group=1, eta=2), {"a": 1})
    tickets = []
    while isinstance(ticket := pacing.admit(), Ticket):
        tickets.append(ticket)
    assert len(tickets) == 12
    assert "slots" in ticket.why


def test_capacity_limits_what_runs_at_once():
    """AReaL tests/test_staleness_manager.py: limit 5 with 3 running leaves 2."""
    pacing = Pacing(Config(batch=4, group=1, eta=2, capacity=5), {"a": 1})
    first = [pacing.admit() for _ in range(3)]
    assert all(isinstance(t, Ticket) for t in first)
    more = [pacing.admit() for _ in range(3)]
    assert [isinstance(t, Ticket) for t in more] == [True, True, False]
    assert "capacity" in more[-1].why


def test_step_is_held_for_a_straggler_that_would_become_too_old():
    pacing = Pacing(Config(batch=2, group=1, eta=1), {"a": 1})
    slow, *fast = [pacing.admit() for _ in range(4)]
    for ticket in fast[:2]:
        pacing.finished(ticket, 0)
    pacing.trained(pacing.batch())  # the straggler may still be trained at version 1
    late = pacing.admit()
    for ticket in (fast[2], late):
        pacing.finished(ticket, ticket.group // 4)
    assert "hold: group 0" in pacing.batch().why
    pacing.finished(slow, 0)
    assert pacing.batch()[0] == 0


def test_domains_are_opened_by_their_shares():
    pacing = Pacing(Config(batch=100, group=1, eta=0), {"a": 1, "b": 3})
    while isinstance(pacing.admit(), Ticket):
        pass
    assert pacing.shares.open == {"a": 25, "b": 75}


def test_third_failure_quarantines_the_task_and_frees_its_slots():
    pacing = Pacing(Config(batch=2, group=2, eta=0), {"a": 1})
    ticket, _other = pacing.admit(), pacing.admit()
    assert pacing.failed(ticket) == "retried: attempt 2 of 3"
    again = pacing.admit()
    assert (again.group, again.slot, again.attempt) == (ticket.group, ticket.slot, 1)
    pacing.failed(again)
    assert pacing.failed(pacing.admit()).startswith("quarantined")
    assert pacing.occupied == 0


def test_a_preempted_sample_starts_again_before_those_that_failed_and_counts_no_fault():
    pacing = Pacing(Config(batch=3, group=1, eta=0, capacity=3), {"a": 1})
    first, second, third = pacing.admit(), pacing.admit(), pacing.admit()
    assert isinstance(pacing.admit(), Wait)
    pacing.failed(first)
    for ticket in (second, third):
        assert pacing.failed(ticket, worker="w1", preempted=True).startswith("preempted")
    assert [pacing.admit().group for _ in range(2)] == [third.group, second.group]
    ticket = pacing.admit()
    assert (ticket.group, ticket.faults) == (first.group, 1)
    for attempt in range(2, 6):
        pacing.failed(ticket, preempted=True)
        ticket = pacing.admit()
        assert (ticket.attempt, ticket.faults) == (attempt, 1)


def test_a_group_is_opened_with_slots_for_all_of_its_samples_or_not_at_all():
    pacing = Pacing(Config(batch=8, group=4, eta=0, capacity=1), {"a": 1}, until=3)
    while pacing.version < 3:  # one place for four samples: none waits for a sibling
        ticket = pacing.admit()
        assert pacing.occupied in (4, 8)
        assert isinstance(pacing.admit(), Wait)
        pacing.finished(ticket, pacing.version)
        if not isinstance(chosen := pacing.batch(), Wait):
            pacing.trained(chosen)


def test_a_broken_worker_condemns_no_task_but_failures_on_three_do():
    pacing = Pacing(Config(batch=1, group=1, eta=0), {"a": 1})
    for worker in ("w1", "w1", "w1", "w2"):
        assert pacing.failed(pacing.admit(), worker=worker).startswith("retried")
    assert pacing.failed(pacing.admit(), worker="w3") == "quarantined: 5 attempts failed on w1, w2, w3"


def test_a_sample_that_only_ever_meets_one_worker_is_given_up_in_the_end():
    pacing = Pacing(Config(batch=1, group=1, eta=0), {"a": 1})
    said = [pacing.failed(pacing.admit(), worker="w1").split(":")[0] for _ in range(9)]
    assert said == ["retried"] * 8 + ["quarantined"]


def test_resumed_state_finishes_what_was_open():
    pacing = Pacing(Config(batch=2, group=2, eta=1), {"a": 1}, version=5)
    pacing.restore(7, "a", {1: 4})
    ticket = pacing.admit()
    assert (ticket.group, ticket.slot) == (7, 0)
    pacing.finished(ticket, 5)
    assert pacing.batch() == [7]
    assert pacing.admit().group == 8


@pytest.mark.parametrize("bad", [{"batch": 10, "group": 4}, {"eta": -1}, {"group": 0}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(ConfigError):
        Pacing(config.build(Config, bad), {"a": 1})


def test_a_conversation_that_goes_on_after_a_crash_keeps_the_age_of_its_tokens():
    pacing = Pacing(Config(batch=4, group=2, eta=1), {"a": 1}, version=3)
    pacing.restore(7, "a", finished={0: 3}, begun={1: 2})
    pacing.restore(8, "a", finished={0: 3, 1: 3})
    pacing.restore(9, "a", finished={0: 3, 1: 3})
    assert "hold: group 7" in pacing.batch().why, "its tokens of version 2 must be trained now or never"
    again = pacing.admit()
    assert (again.group, again.slot) == (7, 1)
    pacing.finished(again, 2)
    assert pacing.batch() == [7, 8]


def test_groups_that_teach_nothing_make_room_up_to_the_limit_of_a_step():
    pacing = Pacing(Config(batch=4, group=2, eta=0, refill=1), {"a": 1})

    def finish(group: int) -> list[int]:
        for ticket in [t for t in started if t.group == group]:
            pacing.finished(ticket, pacing.version)
        return pacing.refill(group, flat=True)

    def admitted() -> list[Ticket]:
        found = []
        while isinstance(ticket := pacing.admit(), Ticket):
            found.append(ticket)
        return found

    started = admitted()
    assert {t.group for t in started} == {0, 1}
    assert finish(0) == [0]
    started += admitted()
    assert finish(1) == [1]
    started += admitted()
    assert {t.group for t in started} == {0, 1, 2, 3}
    assert finish(2) == finish(3) == [], "one batch of two was replaced"
    assert pacing.batch() == [2, 3]
    pacing.trained([2, 3], useless=[2, 3])
    started += admitted()
    assert finish(4) == [4], "the next step has a limit of its own"
