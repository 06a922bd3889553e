"""Placement on replicas: affinity within its tolerance, caches under pressure, holds during tools, worthwhile moves."""

import random

import pytest

from temper.core import config
from temper.core.errors import ConfigError
from temper.scheduling.pacing import Wait
from temper.scheduling.replicas import Config, Placed, Replicas, Speed

NOTHING = lambda session: 0.0  # noqa: E731


def make(caches, speed=None, **settings) -> Replicas:
    return Replicas(Config(**settings), speed or Speed(), caches)


@pytest.mark.parametrize("seed", range(100))
def test_any_sequence_keeps_sessions_limits_and_affinity(seed):
    rng = random.Random(seed)
    settings = Config(limit=rng.randint(1, 6), tolerance=rng.choice([0.0, 0.3, 2.0]), hold=rng.choice([0.0, 5.0, 50.0]))
    cache = rng.choice([0.0, 400.0])
    replicas = Replicas(settings, Speed(prefill=0.01, base=1, each=0.2), [cache] * rng.randint(1, 5))
    tokens: dict[int, float] = {}  # of every session that did not end
    running: dict[int, int] = {}  # session: replica
    cached: dict[int, int] = {}  # session: replica, running or held
    group = lambda session: session // 4  # noqa: E731
    now, begun = 0.0, 0

    def freed(records) -> None:
        for one in records:
            assert cached.pop(one.session) == one.replica
            assert one.running == (one.session in running)
            running.pop(one.session, None)

    for _ in range(300):
        now += rng.random()
        freed(replicas.tick(now))
        waiting = [s for s in tokens if s not in running]
        move = rng.random()
        if move < 0.3 and begun < 60:
            tokens[begun] = 0.0
            begun += 1
        elif move < 0.6 and waiting:
            session = rng.choice(waiting)
            loads = [replica.load for replica in replicas.all]
            homes = {cached[s] for s in cached if group(s) == group(session)}
            placed = replicas.place(session, group(session), 50.0, tokens[session], 5.0)
            if isinstance(placed, Wait):
                assert min(loads) >= 1, "it could have run"
                continue
            assert loads[placed.replica] < 1, "more than a replica admits"
            near = {cached[session]} if session in cached else homes
            if near and placed.replica not in near:
                best = min(loads[i] for i in near)
                assert best >= 1 or best > min(loads) + settings.tolerance, "left its cache without need"
            kept = session in cached and cached[session] == placed.replica
            shared = 0.0 if placed.replica in homes else 50.0
            assert placed.prefill == (5.0 if kept else tokens[session] + 5.0 + shared)
            tokens[session] += 5.0
            running[session] = cached[session] = placed.replica
        elif move < 0.75 and running:
            session = rng.choice(sorted(running))
            tokens[session] += 20
            replicas.paused(session, tokens[session], now)
            del running[session]
            if not settings.hold:
                del cached[session]
        elif move < 0.85 and tokens:
            session = rng.choice(sorted(tokens))
            replicas.ended(session)
            for known in (tokens, running, cached):
                known.pop(session, None)
        elif move < 0.95:
            at = rng.randrange(len(replicas.all))
            freed(replicas.measured(at, replicas.all[at].tokens * rng.uniform(0.5, 2), NOTHING))
        else:
            for placed in replicas.balance(lambda session: 30.0):
                assert running[placed.session] != placed.replica
                tokens[placed.session] += 30.0
                running[placed.session] = cached[placed.session] = placed.replica
        for i, replica in enumerate(replicas.all):
            here = [s for s in cached if cached[s] == i]
            assert set(replica.running) == {s for s in here if s in running}
            assert replica.tokens == pytest.approx(sum(tokens[s] for s in here) + 50 * len({group(s) for s in here}))


def test_siblings_follow_their_prompt_until_its_replica_is_fuller_than_the_tolerance():
    replicas = make([0, 0], limit=10, tolerance=0.25)
    where = [replicas.place(i, "group", 100, 0) for i in range(5)]
    assert [p.replica for p in where] == [0, 0, 0, 1, 1]  # 0.3 above the empty one is too much; then both have it
    assert [p.prefill for p in where] == [100, 0, 0, 100, 0]
    assert "fuller by 0.30" in where[3].why


def test_a_cache_is_held_for_a_tool_and_given_up_after_its_time():
    replicas = make([1000], hold=30)
    replicas.place("a", "g", 100, 0)
    replicas.paused("a", 50, now=10)
    assert replicas.tick(39) == []
    back = replicas.place("a", "g", 100, 50, new=7)
    assert isinstance(back, Placed)
    assert back.prefill == 7
    replicas.paused("a", 80, now=50)
    assert [f.session for f in replicas.tick(80)] == ["a"]
    assert replicas.all[0].tokens == 0
    again = replicas.place("a", "g", 100, 80, new=7)
    assert isinstance(again, Placed)
    assert again.prefill == 187


def test_pressure_cuts_by_a_factor_and_grows_back_by_steps():
    """Additive increase, multiplicative decrease (Chiu and Jain 1989): 16, x 0.5, + 2 a measure."""
    replicas = make([1000], limit=16, low=0.6, high=0.8, grow=2, cut=0.5)
    for i in range(16):
        replicas.place(i, i, 0, 10)
    limits = []
    for used in (850, 850, 700, 500, 500):
        replicas.measured(0, used, NOTHING)
        limits.append(replicas.all[0].limit)
    assert limits == [8, 8, 8, 10, 12]  # one cut, as 16 still run; nothing between low and high
    for i in range(16):
        replicas.ended(i)
    for i in range(12):
        assert isinstance(replicas.place(i, i, 0, 10), Placed)
    assert isinstance(replicas.place(12, 12, 0, 10), Wait)
    for i in range(12, 16):  # it recovers, as long as there is demand
        replicas.measured(0, 500, NOTHING)
        assert isinstance(replicas.place(i, i, 0, 10), Placed)


def test_limit_does_not_grow_while_it_does_not_bind():
    replicas = make([1000], limit=16)
    replicas.place("a", "a", 0, 10)
    replicas.measured(0, 10, NOTHING)
    assert replicas.all[0].limit == 16


def test_a_full_cache_takes_held_caches_then_those_that_made_least_and_never_the_last():
    replicas = make([1000], low=0.5, high=0.75)
    for name, tokens in (("long", 500), ("short", 100), ("middle", 200), ("tool", 150)):
        replicas.place(name, name, 0, tokens)
    replicas.paused("tool", 150, now=0)
    freed = replicas.measured(0, 1001, NOTHING)
    assert [(f.session, f.running) for f in freed] == [("tool", False), ("short", True), ("middle", True)]
    assert list(replicas.all[0].running) == ["long"]
    assert replicas.measured(0, 1500, NOTHING) == []


def test_a_session_moves_only_where_it_wins_more_than_reading_again_costs():
    """Seven on one replica and one on the other: a step takes 1 + 7 x 0.1 = 1.7 s, and 1.2 s where two run."""
    for prefill, moves in ((0.9, 0), (0.2, 1)):
        replicas = make([0, 0], Speed(prefill=prefill, base=1.0, each=0.1), limit=128)
        for i in range(7):
            replicas.place(i, "g", 0, 0)
        replicas.place("other", "other", 0, 0)
        found = replicas.balance(lambda session: 100.0 * (session == 3))
        # it made 100 tokens, so it is to make 100 more: 50 s are won, and 100 tokens are read again
        assert len(found) == moves
        if moves:
            assert (found[0].session, found[0].replica, found[0].prefill) == (3, 1, 100)
            assert "30 s are won" in found[0].why


def test_nothing_is_placed_on_a_lost_replica_until_it_admits_again():
    replicas = make([0, 0], limit=4, tolerance=1.0)
    for name in ("runs", "held"):
        assert replicas.place(name, "g", 100, 0).replica == 0
    replicas.paused("held", 0, now=0)
    replicas.lost(0)
    again = replicas.place("held", "g", 100, 0)
    assert (again.replica, again.prefill) == (1, 100), "its cache is gone"
    assert "its cache is lost" in again.why
    assert replicas.balance(NOTHING) == [], "what runs there ends by itself"
    replicas.lost(1)
    assert isinstance(replicas.place("new", "n", 100, 0), Wait)
    replicas.admits(0, 2)
    assert replicas.place("new", "n", 100, 0).replica == 0
    assert isinstance(replicas.place("more", "n", 100, 0), Wait)


def test_what_fits_no_replica_is_refused():
    with pytest.raises(ConfigError, match="needs a cache of 1001 tokens"):
        make([1000]).place("a", "a", 1, 1000)


@pytest.mark.parametrize("bad", [{"limit": 0}, {"low": 0.9, "high": 0.8}, {"cut": 1.0}, {"hold": -1}])
def test_bad_settings_are_refused(bad):
    with pytest.raises(ConfigError):
        config.build(Config, bad)


def test_a_step_that_takes_no_time_is_refused():
    with pytest.raises(ConfigError):
        Speed(base=0.0)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_many_more_sequences():
    for seed in range(100, 20_000):
        test_any_sequence_keeps_sessions_limits_and_affinity(seed)
