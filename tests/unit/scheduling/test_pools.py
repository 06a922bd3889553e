"""Pools: nothing over capacity, gangs whole, nobody waits for ever, and who gives way. A seeded fuzzer and examples."""

import random

import pytest

from temper.core.errors import ConfigError
from temper.scheduling.pools import SEEN, Change, Claim, Pools


@pytest.mark.parametrize("seed", range(150))
def test_any_sequence_keeps_capacity_and_gangs_and_loses_nobody(seed):
    rng = random.Random(seed)
    sizes = {"cpu": rng.randint(2, 8), "memory": rng.randint(4, 16), "verify": rng.randint(1, 3)}
    pools, names = Pools(sizes), [*sizes, "gpu"]  # gpu is unbounded
    gangs: dict[int, list[int]] = {}  # gang: tasks that did not end
    of: dict[int, int] = {}
    holding: set[int] = set()
    served: set[int] = set()

    def apply(change: Change) -> None:
        for task in change.preempted:
            assert task in holding, "who holds nothing cannot be preempted"
            holding.discard(task)
        for task in change.granted:
            assert task not in holding, "granted twice"
            holding.add(task)
            served.add(task)
        for tasks in gangs.values():
            assert len(holding.intersection(tasks)) in (0, len(tasks)), "a gang runs in part"
        assert all(pools.free[name] > -1e-6 or len(holding) == 1 for name in sizes), "over capacity"

    task = 0
    for number in range(60):
        size = rng.choice([1, 1, 2, 3])
        claims = []
        for _ in range(size):
            wanted = {n: rng.uniform(0, sizes.get(n, 9) / size) for n in rng.sample(names, rng.randint(1, 3))}
            claims.append(Claim(task, wanted, rng.choice("ab"), 0))
            of[task] = number
            task += 1
        gangs[number] = [claim.task for claim in claims]
        apply(pools.ask(*claims))
        for _ in range(rng.randint(0, 3)):
            end(rng, pools, holding, gangs, of, apply)
    for _ in range(2 * task):  # no claim is asked for any more: all must be served
        end(rng, pools, holding, gangs, of, apply)
    assert served == set(range(task)), "somebody waits for ever"
    assert pools.free == pytest.approx(sizes), "something was not given back"


def end(rng, pools, holding, gangs, of, apply) -> None:
    """A running task reports its use now or ends, with a measured use."""
    if holding:
        task = rng.choice(sorted(holding))
        gangs[of[task]].remove(task)
        holding.remove(task)
        apply(pools.release(task, {"memory": rng.uniform(0, 4)} if rng.random() < 0.5 else None))


@pytest.mark.parametrize("seed", range(50))
def test_overuse_preempts_and_everybody_still_ends(seed):
    """Tasks that use more than was reserved are run again until each has ended; the pool is never left over-full."""
    rng = random.Random(seed)
    pools, left, holding = Pools({"memory": 10.0}), set(range(40)), list[int]()

    def apply(change: Change) -> None:
        for task in change.preempted:
            holding.remove(task)
        holding.extend(change.granted)
        assert pools.free["memory"] > -1e-6 or len(holding) == 1

    for task in left:
        apply(pools.ask(Claim(task, {"memory": 8.0}, "a")))
    for _ in range(2000):
        if not left:
            break
        assert holding, "nothing runs"
        task = rng.choice(holding)
        used = rng.choice([1.0, 1.0, 1.0, 6.0])
        apply(pools.uses(task, {"memory": used}))
        if task in holding:
            holding.remove(task)
            left.discard(task)
            apply(pools.release(task, {"memory": used}))
    assert not left


def test_a_group_starts_whole_or_not_at_all():
    pools = Pools({"cpu": 4})
    assert pools.ask(Claim("a", {"cpu": 2})).granted == ("a",)
    assert pools.ask(*(Claim(f"g{i}", {"cpu": 1}) for i in range(3))).granted == ()
    assert pools.free["cpu"] == pytest.approx(2), "a waiting gang holds nothing"
    assert set(pools.release("a").granted) == {"g0", "g1", "g2"}


def test_a_large_gang_is_not_overtaken_by_small_claims_that_would_fit():
    pools = Pools({"cpu": 4, "verify": 1})
    pools.ask(Claim("a", {"cpu": 3}))
    assert pools.ask(Claim("large", {"cpu": 4})).granted == ()
    assert pools.ask(Claim("small", {"cpu": 1})).granted == ()
    assert pools.ask(Claim("elsewhere", {"verify": 1})).granted == ("elsewhere",)
    assert pools.release("a").granted == ("large",)
    assert pools.release("large").granted == ("small",)


def test_higher_priority_is_served_first():
    pools = Pools({"cpu": 1})
    pools.ask(Claim("a", {"cpu": 1}))
    pools.ask(Claim("train", {"cpu": 1}))
    pools.ask(Claim("evaluate", {"cpu": 1}, priority=1))
    assert pools.release("a").granted == ("evaluate",)


def test_measured_use_admits_more_than_stated_limits_would():
    """Jacobson's estimator of a constant: deviation 0, so the reservation is the measured 2 of a limit of 8."""
    pools = Pools({"memory": 16.0})
    for task in range(SEEN):
        pools.ask(Claim(task, {"memory": 8.0}, "sql"))
        pools.release(task, {"memory": 2.0})
    assert pools.reserve(Claim("x", {"memory": 8.0}, "sql")) == {"memory": 2.0}
    assert pools.reserve(Claim("x", {"memory": 8.0}, "other")) == {"memory": 8.0}
    granted = [pools.ask(Claim(f"n{i}", {"memory": 8.0}, "sql")).granted for i in range(9)]
    assert sum(map(len, granted)) == 8


def test_uneven_use_is_reserved_with_four_deviations_and_never_above_the_limit():
    pools = Pools({"memory": 100.0})
    for task in range(8):
        pools.ask(Claim(task, {"memory": 8.0}, "sql"))
        pools.release(task, {"memory": 1.0 + 2 * (task % 2)})
    # means 1, 2, 5/3, 2, ... after eight of 1, 3, 1, 3: mean 2; deviations by hand from the recurrence with weights 1/n
    mean, deviation = 1.0, 0.0
    for n in range(1, 9):
        used = 1.0 + 2 * ((n - 1) % 2)
        deviation += (abs(used - mean) - deviation) / n
        mean += (used - mean) / n
    assert mean == pytest.approx(2.0)
    assert pools.reserve(Claim("x", {"memory": 8.0}, "sql"))["memory"] == pytest.approx(mean + 4 * deviation)
    assert pools.reserve(Claim("x", {"memory": 3.0}, "sql"))["memory"] == 3.0


def test_lowest_priority_and_then_youngest_progress_gives_way():
    pools = Pools({"memory": 6.0})
    for i in range(SEEN):
        pools.ask(Claim(i, {"memory": 6.0}, "a"))
        pools.release(i, {"memory": 1.0})
    for name, priority in (("old", 0), ("young", 0), ("precious", 1)):
        pools.ask(Claim(name, {"memory": 6.0}, "a", priority))
    assert pools.uses("old", {"memory": 4.0}).preempted == ()
    assert pools.uses("old", {"memory": 4.5}).preempted == ("young",)
    assert pools.uses("precious", {"memory": 5.0}).preempted == ("old",)
    assert pools.uses("precious", {"memory": 9.0}).preempted == (), "the last one stays"


def test_what_never_fits_is_refused_at_once():
    pools = Pools({"cpu": 2})
    with pytest.raises(ConfigError, match="needs 3 of cpu"):
        pools.ask(*(Claim(i, {"cpu": 1}) for i in range(3)))


def test_a_task_that_waits_may_be_withdrawn():
    pools = Pools({"cpu": 1})
    pools.ask(Claim("a", {"cpu": 1}))
    pools.ask(Claim("b", {"cpu": 1}))
    pools.ask(Claim("c", {"cpu": 1}))
    assert pools.release("b").granted == ()
    assert pools.release("a").granted == ("c",)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_many_more_sequences():
    for seed in range(150, 50_000):
        test_any_sequence_keeps_capacity_and_gangs_and_loses_nobody(seed)
