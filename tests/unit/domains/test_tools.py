import asyncio
import itertools
import random
import time

import pytest

from temper.core.protocols import Resources
from temper.core.task import Message, ToolCall
from temper.domains import tools

DOMAIN = tools.create()
DONE = Message("assistant", "done")


def calls(*made):
    return Message("assistant", calls=tuple(ToolCall(*call) for call in made))


def some(level, n=1, seed=0):
    return list(itertools.islice(DOMAIN.tasks("train", level, seed), n))


def one(world, words):
    """A task of level 1 of that world in whose request the words stand."""
    return next(t for t in DOMAIN.tasks("train", 1, 0) if t.start["world"] == world and words in t.messages[0].content)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_end_state_is_not_the_first_one(level):
    for task in some(level, 200):
        assert task.reference["state"] != task.start["facts"]


def test_a_change_that_nobody_asked_for_fails(say):
    task = one("Bank", "pays")
    right = [*DOMAIN.gold(task)[:-1]]
    third = next(name for name in task.start["facts"] if name not in task.messages[0].content)
    collateral = calls(("pay", {"src": third, "dst": task.reference["calls"][-1]["arguments"]["src"], "n": 1}))
    assert say(DOMAIN, task, [*right, DONE])[1].score == 1
    assert say(DOMAIN, task, [*right, collateral, DONE])[1].score == 0


def test_a_value_that_was_not_looked_up_is_no_solution(say):
    task = one("Stock", "Take all")
    (lookup, act) = task.reference["calls"]
    assert say(DOMAIN, task, [calls((act["name"], act["arguments"])), DONE])[1].score == 0
    late = [calls((call["name"], call["arguments"])) for call in (act, lookup)]
    assert say(DOMAIN, task, [*late, DONE])[1].score == 0


def test_deeds_of_level_three_keep_their_order(say):
    for task in some(3, 5):
        turns = [calls((c["name"], c["arguments"])) for c in task.reference["calls"]]
        assert say(DOMAIN, task, [*turns, DONE])[1].score == 1
        assert say(DOMAIN, task, [*turns[::-1], DONE])[1].score == 0


def test_a_world_that_was_filled_up_can_still_be_saved():
    """Else a policy could turn its own doing into a fault."""

    async def go():
        world = DOMAIN.environment(one("Stock", "Take all"), Resources(None, time.monotonic, random.Random(0)))
        await world.start()
        added = await world.step(calls(*[("add", {"item": "pens", "n": 2**63 - 1})] * 3))
        await world.fork(2)
        return [message.content for message in added.messages]

    assert asyncio.run(go()) == ["error: at most 1000000000 pens"] * 3


def test_wrong_calls_change_nothing_and_say_why(say):
    task = one("Calendar", "Move")
    tried = calls(
        ("book", {"day": "Sun", "hour": 9, "who": "Ann"}),
        ("book", {"day": "Mon", "hour": 99, "who": "Ann"}),
        ("cancel", {"day": "Mon", "hour": "9"}),
    )
    outputs, verdict = say(DOMAIN, task, [tried, *DOMAIN.gold(task)])
    assert outputs[:2] == ["error: Sun 9 is not free", "error: Mon 99 is not free"]
    assert outputs[2].startswith("error: expected cancel(day: string, hour: integer)")
    assert verdict.score == 1
