"""What was spent, whose it was, what it cost, and what would have helped. Expected numbers are worked out by hand."""

import pytest

from temper.core.trace import Cost
from temper.scheduling.ledger import Ledger, Occupancy, Spent
from temper.store.codec import decode, encode


def ledger(*spent: Spent, **settings) -> Ledger:
    made = Ledger(**settings)
    for one in spent:
        made.add(one)
    return made


def test_measured_seconds_are_shared_by_what_rollouts_took():
    """Two rollouts decode side by side for 30 and 10 seconds; the engine was busy for 20 in all."""
    slow, quick = Cost(decode=30.0, tool=2.0), Cost(decode=10.0)
    made = ledger(Spent.of(slow, domain="a"), Spent.of(quick, domain="b", measured={"decode": 20.0}))
    assert made.stage("decode") == 20.0
    assert (made.share("decode", "a"), made.share("decode", "b")) == (15.0, 5.0)
    assert (made.share("tool", "a"), made.share("tool", "b")) == (2.0, 0.0)
    assert made.stage("compute") == 20.0


def test_money_is_of_seconds_and_tokens_and_adds_up_over_domains():
    costs = {"a": Cost(decode=3.0, tokens_in=100, tokens_out=20), "b": Cost(verify=8.0), "": Cost(gradient=5.0)}
    prices = {"decode": 2.0, "gradient": 1.0, "tokens": 0.01}
    made = ledger(*(Spent.of(cost, domain=name) for name, cost in costs.items()), prices=prices)
    assert [made.cost(name) for name in costs] == [3 * 2 + 120 * 0.01, 0.0, 5.0]
    assert made.money == pytest.approx(12.2)


def test_budgets_name_what_is_used_up():
    limits = {"tokens": 100, "money": 50, "verify": 10, "seconds": 60}
    made = ledger(Spent.of(Cost(verify=11.0, tokens_out=100)), prices={"verify": 4.0}, budgets=limits)
    assert made.exceeded(60.0) == {"verify": "verify: 11 of 10 spent"}
    assert set(made.exceeded(61.0)) == {"verify", "seconds"}
    made.add(Spent.of(Cost(verify=2.0, tokens_in=1)))
    assert set(made.exceeded()) == {"verify", "tokens", "money"}


def test_widening_saves_no_more_than_the_seconds_in_which_the_bottleneck_was_busy():
    """100 s, of which compute was busy for 60 and two verifiers for 180 / 2; a third leaves 60 of the 90."""
    made = ledger(Spent.of(Cost(gradient=60.0, verify=180.0)))
    found = made.suggestion({"compute": 1, "verification": 2}, 100.0)
    assert (found.stage, found.workers) == ("verification", 3)
    assert found.gain == pytest.approx(100 / (100 - 90 + 60) - 1)
    assert str(found) == "verification is the bottleneck: 3 workers would add 43%"


def test_a_crowd_before_the_verifiers_is_no_more_than_all_of_their_time():
    """Ten rollouts wait and are graded for 500 seconds together, in a run of 100 with two workers."""
    made = ledger(Spent.of(Cost(gradient=50.0, verify=500.0)))
    found = made.suggestion({"compute": 1, "verification": 2}, 100.0)
    assert (found.stage, found.workers, found.gain) == ("verification", 4, pytest.approx(1.0))


def test_workers_are_busy_while_there_is_something_to_do_and_never_more_of_them_than_there_are():
    """Two workers; jobs come at 1, 2 and 3 and go at 5, 6 and 9: one is busy for 1 s, two for 4, one for 3."""
    pool = Occupancy(2)
    for now, move in (
        (1, pool.come),
        (2, pool.come),
        (3, pool.come),
        (5, pool.go),
        (6, pool.go),
        (9, pool.go),
        (20, pool.come),
    ):
        move(float(now))
    assert pool.seconds == 1 * 1 + 2 * 4 + 1 * 3


def test_a_record_of_it_can_be_stored():
    spent = Spent.of(Cost(decode=1.5, tokens_out=3), part="rl", domain="a", measured={"decode": 0.5}, bytes={"sync": 9})
    assert decode(encode(spent), Spent) == spent
