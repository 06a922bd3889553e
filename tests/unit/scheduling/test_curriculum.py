"""Posteriors and what is chosen by them. Expected values are closed forms of the Beta-binomial distribution."""

import math
import random

import pytest

from temper.scheduling.curriculum import Curriculum, mixed, shift


@pytest.mark.parametrize(("a", "b", "n"), [(1.0, 1.0, 4), (0.3, 1.2, 8), (5.0, 2.0, 6)])
def test_probability_of_both_outcomes_is_the_beta_binomials(a, b, n):
    beta = lambda x, y: math.exp(math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y))  # noqa: E731
    expected = 1 - beta(a + n, b) / beta(a, b) - beta(a, b + n) / beta(a, b)
    assert mixed(a, b, n) == pytest.approx(expected)


def test_a_group_that_has_both_outcomes_stays_one_and_one_that_agrees_needs_the_other():
    assert mixed(1, 1, 0, passed=1, failed=1) == 1.0
    assert mixed(1, 1, 2, passed=2) == pytest.approx(1 - 3 / 4 * 4 / 5)


def test_the_instructive_task_is_chosen_before_the_hopeless_and_the_solved_one():
    curriculum = Curriculum(4)
    for name, passed in (("hopeless", 0), ("half", 4), ("solved", 8)):
        curriculum.offer(name, "pool")
        curriculum.observe(name, passed, 8 - passed, 1.0)
    assert max(curriculum.tasks, key=curriculum.value) == "half"


def test_of_equally_instructive_tasks_the_cheaper_one_is_chosen():
    curriculum = Curriculum(4)
    for name, seconds in (("slow", 10.0), ("quick", 1.0)):
        curriculum.offer(name, "pool")
        curriculum.observe(name, 4, 4, seconds)
    assert curriculum.value("quick") == pytest.approx(10 * curriculum.value("slow"))


def test_a_pool_learns_its_prior_from_the_tasks_that_were_tried():
    rng = random.Random(0)
    curriculum = Curriculum(8)
    for i in range(2000):
        curriculum.offer(str(i), "pool")
        rate = rng.betavariate(0.5, 1.5)
        passed = sum(rng.random() < rate for _ in range(8))
        curriculum.observe(str(i), passed, 8 - passed)
    assert curriculum.pools["pool"].prior() == (pytest.approx(0.5, rel=0.15), pytest.approx(1.5, rel=0.15))


def test_old_tries_fade_so_that_a_task_may_be_seen_anew():
    curriculum = Curriculum(4)
    curriculum.offer("task", "pool")
    curriculum.observe("task", 0, 8)
    before = curriculum.value("task")
    curriculum.version = 300
    assert curriculum.value("task") > 2 * before


def test_a_tried_task_rests():
    curriculum = Curriculum(2)
    for name in "abcdefgh":
        curriculum.offer(name, "pool")
    chosen = []
    for _ in range(3):
        chosen.append(curriculum.choose())
        curriculum.observe(chosen[-1], 1, 1, 1.0)
    assert len(set(chosen)) == 3


def test_the_rest_of_a_group_that_agrees_is_given_up_where_the_run_yields_more():
    curriculum = Curriculum(8)
    for i in range(40):
        curriculum.offer(str(i), "good")
        curriculum.observe(str(i), 4, 4, 1.0)
    curriculum.offer("bad", "bad")
    curriculum.observe("bad", 0, 16, 1.0)
    assert not curriculum.commit("bad", 0, 2)
    assert curriculum.commit("bad", 1, 1)
    assert curriculum.dropped == {"bad": 1}


def test_weights_move_to_domains_that_teach_and_keep_their_floors():
    moved = shift({"a": 1, "b": 1, "c": 2}, {"a": 0.3, "b": 0.0, "c": 0.05})
    assert sum(moved.values()) == pytest.approx(1)
    assert moved["b"] == pytest.approx(0.25 * 0.25)
    assert moved["a"] == pytest.approx(0.25 * 0.25 + 0.75 * 0.75)
    assert shift({"a": 1, "b": 3}, {}) == {"a": 0.25, "b": 0.75}
