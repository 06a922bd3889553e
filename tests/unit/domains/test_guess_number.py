"""The game: what it says, what it costs, and that no more tries are given than halving needs."""

import asyncio
import itertools

import pytest

from temper.core.task import Message
from temper.domains import guess_number

DOMAIN = guess_number.create()


def some(level, n=1, split="train"):
    return list(itertools.islice(DOMAIN.tasks(split, level), n))


@pytest.mark.parametrize("level", [1, 2, 3])
def test_halving_wins_within_the_tries_whatever_the_number(level):
    """The worst number of n needs floor(log2 n) + 1 guesses (Knuth, The Art of Computer Programming 3, 6.2.1)."""
    for task in some(level, 200):
        size = task.start["high"] - task.start["low"] + 1
        assert len(DOMAIN.gold(task)) <= task.limits.turns == len(f"{size:b}")


def test_it_says_higher_lower_or_what_it_wants(say):
    (task,) = some(1)
    low, high, number = (task.start[name] for name in ("low", "high", "number"))
    asked = f"one number, {low} to {high}"
    guesses = [str(n) for n in range(low, high + 1) if n != number]
    outputs, _ = say(DOMAIN, task, [Message("assistant", guess) for guess in guesses])
    assert outputs == ["higher" if int(guess) < number else "lower" for guess in guesses]
    odd = ["", "seven", f"0{number}", f"{number}.0", f"+{number}", f"{number} {number}", str(high + 1), "٣", "9" * 5000]
    outputs, verdict = say(DOMAIN, task, [Message("assistant", text) for text in odd])
    assert outputs == [asked] * len(odd)
    assert verdict.score == 0


def test_the_number_ends_the_game_and_wins(say):
    (task,) = some(2)
    outputs, verdict = say(DOMAIN, task, DOMAIN.gold(task))
    assert len(outputs) == len(DOMAIN.gold(task)) - 1
    assert verdict.score == 1


def test_no_range_is_both_trained_and_held_out():
    ranges = [{(t.start["low"], t.start["high"]) for t in some(1, 500, split)} for split in ("train", "heldout")]
    assert ranges[0].isdisjoint(ranges[1])


@pytest.mark.parametrize("level", [1, 2, 3])
def test_known_last_messages_are_graded_as_their_author_says(level, say):
    for task in some(level, 3):
        for case in DOMAIN.cases(task):
            _, verdict = say(DOMAIN, task, [Message("assistant", case.answer)])
            second = asyncio.run(DOMAIN.second_opinion(task, case, None))  # it needs no bench
            assert (verdict.score == 1) == case.right == second, case
