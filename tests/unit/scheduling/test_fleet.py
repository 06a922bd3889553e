"""Replicas in the simulator, against closed forms, and under hostile settings: nothing lost, nothing over capacity."""

import random

import pytest
from msgspec.structs import replace

from temper.core.errors import ConfigError
from temper.scheduling.pacing import Config, Pacing
from temper.scheduling.replicas import Config as Admission
from temper.scheduling.replicas import Speed
from temper.scheduling.simulator import Cluster, Load, Outcome, Simulation

EVEN = Load(median=10.0, between=0.0, within=0.0)
ONE = Cluster(replicas=1, speed=Speed(base=1.0, each=0.5))


def run(load: Load, cluster: Cluster, batch: int, group: int, steps: int = 1, eta: int = 0, seed: int = 0) -> Outcome:
    until = steps if eta == 0 else None
    policy = Pacing(Config(batch=batch, group=group, eta=eta), {load.name: 1}, until=until)
    return Simulation(policy, [load], cluster, group, seed).run(steps)


def test_a_step_of_all_takes_as_long_as_so_many_at_once_do():
    outcome = run(EVEN, ONE, batch=8, group=4)
    assert outcome.seconds == pytest.approx(10 * (1 + 8 * 0.5))
    assert outcome.bound == pytest.approx(outcome.seconds)


def test_those_that_remain_go_on_faster():
    load = Load(recorded=((10.0,), (20.0,)))
    seed = next(s for s in range(99) if {drawn(load, s, 0), drawn(load, s, 1)} == {10.0, 20.0})
    outcome = run(load, ONE, batch=2, group=1, seed=seed)
    assert outcome.seconds == pytest.approx(10 * 2.0 + 10 * 1.5)


def drawn(load: Load, seed: int, group: int) -> float:
    return load.draw(random.Random(f"{seed} {group}"), 1)[0]


def test_a_prompt_is_read_once_for_a_group_and_the_replica_stands_still_for_it():
    cluster = replace(ONE, speed=Speed(prefill=0.1, base=1.0, each=0.5))
    outcome = run(replace(EVEN, prompt=100.0), cluster, batch=4, group=4)
    assert outcome.prefilled == 100
    assert outcome.seconds == pytest.approx(100 * 0.1 + 10 * (1 + 4 * 0.5))


def test_prompts_may_be_read_elsewhere_by_so_many_workers():
    cluster = replace(ONE, prefill=1, speed=Speed(prefill=0.1, base=1.0, each=0.0))
    outcome = run(replace(EVEN, prompt=50.0), cluster, batch=2, group=1)
    # two prompts of 5 s one after the other; the first session runs from 5 to 15, the second from 10 to 20
    assert outcome.seconds == pytest.approx(20)
    assert outcome.utilisation["prefill"] == pytest.approx(10 / 20)


@pytest.mark.parametrize(("hold", "again"), [(30.0, 0), (3.0, 5), (0.0, 5)])
def test_what_was_made_is_read_again_only_where_the_tool_outlasts_the_hold(hold, again):
    load = replace(EVEN, turns=2, tool=4.0, reads=7.0)
    cluster = replace(ONE, speed=Speed(prefill=0.0, base=1.0), admission=Admission(hold=hold))
    outcome = run(load, cluster, batch=1, group=1)
    assert outcome.prefilled == 7 + again  # what the tool gave, and the five tokens of the first turn
    assert outcome.seconds == pytest.approx(5 + 4 + 5 + 4)
    assert outcome.expired == (hold == 3.0)


def test_new_weights_cost_a_pause_and_the_caches_that_are_read_again():
    cluster = Cluster(replicas=1, speed=Speed(prefill=0.1, base=1.0), sync=5.0)
    settings = {"batch": 1, "group": 1, "steps": 2, "eta": 1}
    uneven = Load(recorded=((10.0, 20.0),))
    seed = next(s for s in range(99) if [drawn(uneven, s, 0), drawn(uneven, s, 1)] == [10.0, 20.0])
    # the other has made 10 of 20 tokens: 5 s of pause and 1 s of reading
    assert run(uneven, cluster, **settings, seed=seed).seconds == pytest.approx(10 + 5 + 1 + 10)
    kept = replace(cluster, recompute=False)
    assert run(uneven, kept, **settings, seed=seed).seconds == pytest.approx(10 + 5 + 10)


def test_a_shared_device_stands_still_while_it_trains():
    load = Load(recorded=((10.0, 20.0),))
    seed = next(s for s in range(99) if [drawn(load, s, 0), drawn(load, s, 1)] == [10.0, 20.0])
    cluster = Cluster(replicas=1, speed=Speed(base=1.0), gradient=7.0)
    settings = {"batch": 1, "group": 1, "steps": 2, "eta": 1, "seed": seed}
    assert run(load, cluster, **settings).seconds == pytest.approx(20 + 7)
    assert run(load, replace(cluster, shared=True), **settings).seconds == pytest.approx(10 + 7 + 10 + 7)


def test_moving_sessions_shortens_a_tail_that_lies_on_one_replica():
    load = Load(prompt=100.0, median=200.0, between=1.0, within=0.1, cap=4000.0)
    cluster = Cluster(replicas=4, speed=Speed(prefill=1e-3, base=1.0, each=0.5), admission=Admission(limit=32))
    pinned = replace(cluster, admission=Admission(limit=32, tolerance=100.0))
    moved, stayed = (run(load, each, 128, 16, seed=1) for each in (cluster, pinned))
    assert moved.migrations > 0 == stayed.migrations
    assert moved.seconds < 1.2 * moved.bound
    assert stayed.seconds > 1.5 * stayed.bound


def test_sandboxes_that_use_less_than_their_limit_let_more_run():
    load = Load(median=50, between=0.3, within=0.3, tool=5, memory=4, peak=0.25)
    cluster = Cluster(replicas=1, memory=40, speed=Speed(base=1.0))
    shy, full = (run(replace(load, peak=peak), cluster, batch=256, group=4) for peak in (0.25, 1.0))
    assert shy.seconds < 0.7 * full.seconds
    assert full.utilisation["memory"] > 0.8
    assert shy.evicted <= 0.01 * 256


@pytest.mark.parametrize("seed", [*range(25), 6957])  # the last: who gets a worker takes the memory of who leaves it
def test_any_cluster_trains_everything_within_its_bound(seed):
    """Small caches, little memory, few workers, faults: steps are whole, ages bounded, pools never over-full."""
    rng = random.Random(seed)
    group, eta, steps = rng.randint(1, 4), rng.randint(0, 3), 4
    batch = group * rng.randint(1, 6)
    load = Load(
        median=60, between=0.8, within=0.5, cap=200, prompt=rng.choice([0, 30]), turns=rng.randint(1, 3),
        reads=rng.choice([0, 10]), tool=rng.choice([0, 5.0, 50.0]), verify=rng.choice([0, 3.0]), memory=4, peak=0.5,
    )  # fmt: skip
    cluster = Cluster(
        replicas=rng.randint(1, 3), cache=rng.choice([0, 300, 600]), prefill=rng.choice([0, 2]),
        speed=Speed(prefill=rng.choice([0, 0.02]), base=1.0, each=rng.choice([0, 0.2])),
        admission=Admission(limit=rng.randint(1, 8), hold=rng.choice([0, 10]), tolerance=rng.choice([0, 0.5])),
        tool=rng.choice([0, 2]), verify=rng.choice([0, 1]), memory=rng.choice([0, 5, 12]), gradient=rng.choice([0, 40]),
        sync=rng.choice([0, 5]), shared=rng.random() < 0.5, failure=rng.choice([0, 0.1]),
    )  # fmt: skip
    policy = Pacing(Config(batch=batch, group=group, eta=eta, attempts=50), {"all": 1}, until=steps)
    simulation = Simulation(policy, [load], cluster, group, seed)
    outcome = simulation.run(steps)
    assert outcome.trained == batch * steps
    assert outcome.age_max <= eta
    assert all(share <= 1 + 1e-9 for share in outcome.utilisation.values())
    assert outcome.started == outcome.trained + outcome.failed + simulation.in_flight
    assert outcome.seconds >= outcome.bound * (1 - 1e-9)
    assert outcome.waste >= -1e-9
    fleet = simulation.fleet
    assert fleet is not None
    assert not fleet.waiting
    if not cluster.failure and not outcome.evicted:
        assert fleet.decoded == pytest.approx(simulation._all), "a token was made twice, or never"


def test_a_rollout_that_no_cache_holds_is_refused():
    with pytest.raises(ConfigError, match="needs a cache"):
        run(replace(EVEN, prompt=500.0), replace(ONE, cache=400), batch=1, group=1)


@pytest.mark.nightly
def test_a_hundred_thousand_rollouts_in_flight_on_replicas():
    load = Load(median=1000, between=0.5, within=0.3, cap=8000, prompt=500, tool=20, verify=5)
    cluster = Cluster(replicas=400, cache=1e6, speed=Speed(prefill=1e-5, base=0.02, each=1e-4), gradient=30, sync=5)
    policy = Pacing(Config(batch=8192, group=16, eta=12), {"all": 1})
    outcome = Simulation(policy, [load], cluster, 16).run(3)
    assert outcome.in_flight >= 100_000
    assert outcome.age_max <= 12
    assert outcome.trained == 3 * 8192


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_many_more_clusters():
    for seed in range(25, 10_000):
        test_any_cluster_trains_everything_within_its_bound(seed)
