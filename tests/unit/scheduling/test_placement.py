"""Who runs where, and who is blamed when workers die: decided without processes, on told events."""

import random

import pytest

from temper.scheduling.placement import CONVICTING, Placement


def placement(*workers, at_once=8):
    made = Placement(at_once)
    for worker in workers:
        made.joined(worker)
    return made


def started(placement):
    found = []
    while start := placement.next():
        found.append(start)
    return found


def test_attempts_go_to_the_worker_that_holds_the_fewest_until_all_are_full():
    held = placement("a", "b", at_once=2)
    for n in range(5):
        held.asked(n, f"task-{n}")
    assert [s.worker for s in started(held)] == ["a", "b", "a", "b"]
    held.ended(1, failed=False)
    assert [(s.attempt, s.worker) for s in started(held)] == [(4, "b")]


def test_what_failed_on_a_worker_is_tried_on_another_and_says_so():
    held = placement("a", "b")
    held.asked(0, "task")
    assert held.next().worker == "a"
    held.asked(1, "other")
    assert held.next().worker == "b"
    held.ended(0, failed=True)
    held.asked(2, "task")
    again = held.next()
    assert again.worker == "b", "though it holds more than a"
    assert "failed on a" in again.why


def test_a_dropped_attempt_leaves_its_place():
    held = placement("a", at_once=1)
    held.asked(0, "x")
    held.asked(1, "y")
    assert held.next().attempt == 0
    assert held.dropped(1) == ""
    assert held.dropped(0) == "a"
    held.asked(2, "z")
    assert held.next().attempt == 2


def test_a_suspect_waits_for_an_empty_worker_and_keeps_it_while_others_go_on():
    held = placement("a", "b", "c", "d", at_once=2)
    held.asked(0, "suspect")
    assert held.next().worker == "a"
    held.lost("a")
    held.asked(1, "suspect")
    lost = held.next().worker
    held.lost(lost)
    (left, other) = held.running
    for n, task in enumerate("wxyz", 10):
        held.asked(n, task)
    assert len(started(held)) == 4
    held.asked(2, "suspect")
    held.asked(20, "late")
    assert started(held) == [], "both workers are full"
    ward = min(held.running, key=lambda w: len(held.running[w]))
    (first, second) = list(held.running[ward])
    held.ended(first, failed=False)
    assert started(held) == [], "the worker is being emptied for the suspect"
    held.ended(second, failed=False)
    (start,) = started(held)
    assert (start.attempt, start.worker) == (2, ward)
    assert "alone" in start.why
    held.ended(2, failed=False)
    assert [s.attempt for s in started(held)] == [20]
    assert {left, other} == set(held.running)


@pytest.mark.parametrize("seed", range(20))
def test_the_task_that_kills_workers_is_convicted_and_whoever_shared_them_ends_well(seed):
    rng = random.Random(seed)
    names = map(str, range(10**6))
    held = placement(*(next(names) for _ in range(rng.randint(1, 4))), at_once=rng.randint(1, 6))
    tasks = {n: "poison" if n == 7 else f"task-{n}" for n in range(40)}
    left, deaths, ended = set(tasks), 0, []
    for n in tasks:
        held.asked(n, tasks[n])
    while left:
        for start in started(held):
            assert len(held.running[start.worker]) <= held.at_once
        running = [(n, worker) for worker, all_ in held.running.items() for n in all_]
        assert running, "something runs while something is left"
        n, worker = rng.choice(running)
        if tasks[n] == "poison":
            deaths += 1
            for other, convicted in held.lost(worker).items():
                if convicted:
                    assert tasks[other] == "poison"
                    left.discard(other)
                else:
                    held.asked(other, tasks[other])
            held.joined(next(names))
        else:
            held.ended(n, failed=False)
            ended.append(n)
            left.discard(n)
    assert deaths == CONVICTING
    assert sorted(ended) == [n for n in tasks if n != 7]
