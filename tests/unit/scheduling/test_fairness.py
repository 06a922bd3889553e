"""Shares are kept in tokens that training used, whatever domains cost and however little they teach."""

import random

import pytest

from temper.core.errors import ConfigError
from temper.scheduling.fairness import Shares


def serve(shares: Shares, cost, groups: int, useful=lambda name: True) -> dict[str, int]:
    opened = dict.fromkeys(shares.used, 0)
    for _ in range(groups):
        name = shares.charge()
        opened[name] += 1
        tokens = cost(name)
        shares.complete(name, tokens)
        shares.settle(name, tokens, useful(name))
    return opened


def test_shares_are_of_tokens_not_of_groups_at_a_hundredfold_spread():
    rng = random.Random(0)
    target = {f"d{i}": 1 + i % 3 for i in range(20)}
    scale = {name: 100 ** (i / 19) for i, name in enumerate(target)}
    shares = Shares(target)
    serve(shares, lambda name: scale[name] * rng.uniform(0.5, 1.5), 60_000)
    for name, share in shares.realised.items():
        assert share == pytest.approx(shares.target[name], rel=0.02)


def test_a_domain_that_teaches_nothing_gets_at_most_four_times_its_share_of_groups():
    opened = serve(Shares({"dull": 1, "bright": 1}), lambda name: 10.0, 1000, lambda name: name != "dull")
    assert opened["dull"] == pytest.approx(800, abs=2)


def test_groups_in_flight_count_so_that_a_slow_domain_is_not_flooded():
    shares = Shares({"slow": 1, "fast": 1})
    serve(shares, lambda name: 10.0, 10)
    names = [shares.charge() for _ in range(100)]
    assert names.count("slow") == 50


def test_dropped_groups_cost_their_domain_nothing():
    shares = Shares({"a": 1, "b": 1})
    for _ in range(10):
        shares.drop(shares.charge("a"))
    assert [shares.charge() for _ in range(2)] == ["a", "b"]


def test_new_weights_do_not_make_up_for_the_past():
    shares = Shares({"a": 1, "b": 1})
    serve(shares, lambda name: 10.0, 100)
    shares.set({"a": 3, "b": 1})
    assert serve(shares, lambda name: 10.0, 100) == {"a": 75, "b": 25}


def test_the_worst_domain_is_named():
    shares = Shares({"a": 1, "b": 1})
    shares.credit("a", 90)
    shares.credit("b", 10)
    assert shares.worst == ("b", pytest.approx(0.2))


@pytest.mark.parametrize("bad", [{}, {"a": -1}, {"a": 0}])
def test_shares_that_are_none_are_refused(bad):
    with pytest.raises(ConfigError):
        Shares(bad)
