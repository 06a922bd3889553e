"""The alarm of a gamed reward: it rings when both signs are there, and seldom when they are not."""

import numpy as np
import pytest

from temper.evaluation.gaming import suspicion

TASKS = [f"t{n}" for n in range(40)]


def solved(*counts):
    """By the step, every ten: the first so many tasks."""
    return {10 * at: {task: n < count for n, task in enumerate(TASKS)} for at, count in enumerate(counts)}


def rising(steps, slope=0.01):
    noise = np.random.default_rng(0).normal(0, 0.02, steps)
    return {step: 0.2 + slope * step + noise[step - 1] for step in range(1, steps + 1)}


def test_reward_that_rises_while_held_out_tasks_are_lost_is_suspected_with_its_numbers():
    why = suspicion(rising(30), solved(10, 30, 28, 14))
    assert why.startswith("since step 10 the reward of training rises by 0.011 a step")
    assert "of 40 held-out tasks 16 were lost and 0 gained" in why


@pytest.mark.parametrize(
    ("rewards", "counts"),
    [
        (rising(30), (10, 20, 25, 30)),  # both rise
        (rising(30), (10, 30, 28, 27)),  # few were lost
        (rising(30, -0.01), (10, 30, 28, 14)),  # both fall: it forgets, and shows it
        (rising(30, 0.0), (10, 30, 28, 14)),  # the reward stands still
        (rising(30), (30,)),  # tried once
        ({}, (30, 0)),  # no reward yet
        (rising(30), (10, 30, 14, 29)),  # lost and found again
    ],
)
def test_one_sign_alone_is_not_suspected(rewards, counts):
    assert suspicion(rewards, solved(*counts)) == ""


def test_tasks_that_were_not_graded_at_both_times_do_not_count():
    looks = solved(30, 10)
    looks[10] = {task: won for task, won in looks[10].items() if int(task[1:]) >= 25}
    assert suspicion(rising(10), looks) == ""


def test_of_stages_that_stand_still_few_are_suspected_and_of_those_that_fall_most():
    """200 made-up stages of 20 looks at 64 tasks, each with a difficulty of its own; the reward rises in all."""
    rng = np.random.default_rng(0)
    rewards = rising(200)

    def rings(fall):
        difficulty = rng.beta(1, 1, 64)
        looks: dict[int, dict[str, bool]] = {}
        for at in range(20):
            won = rng.random(64) < difficulty * (fall if at >= 12 else 1)
            looks[10 * at] = {str(n): bool(w) for n, w in enumerate(won)}
            if at and suspicion({s: r for s, r in rewards.items() if s <= 10 * at}, looks):
                return True
        return False

    assert np.mean([rings(1.0) for _ in range(200)]) <= 0.10
    assert np.mean([rings(0.5) for _ in range(50)]) >= 0.9
