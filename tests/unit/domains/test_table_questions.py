import itertools
import re

import pytest

from temper.core.task import Message
from temper.domains import table_questions

DOMAIN = table_questions.create()
METRES = {"km": 1000, "m": 1, "cm": 0.01, "kg": 1000, "g": 1, "min": 60, "s": 1}


def some(level, n=1, seed=0):
    return list(itertools.islice(DOMAIN.tasks("train", level, seed), n))


def rows(task):
    head, *lines, question = task.messages[0].content.split("\n")
    return head.split(","), [line.split(",") for line in lines], question


def size(cell):
    number, _, unit = cell.lstrip("$").partition(" ")
    return float(number) * METRES.get(unit, 1)


def test_answers_agree_with_the_table_as_it_is_shown():
    """Recomputed from the text, cell by cell."""
    for level in (1, 2, 3):
        for task in some(level, 300):
            (what, kind, number, *_), table, question = rows(task)
            answer = task.reference["answer"]
            if found := re.match(r"Which \w+ has the (highest|lowest) ", question):
                best = (max if found[1] == "highest" else min)(table, key=lambda row: size(row[2]))
                assert answer == [best[0]]
            if found := re.match(rf"How many have {kind} (.+)\?", question):
                assert answer == [str(sum(row[1] == found[1] for row in table))]
            if found := re.match(rf"Total {number} of those with {kind} (.+)\?", question):
                assert sum(size(row[2]) for row in table if row[1] == found[1]) == pytest.approx(size(answer[0]))
            if found := re.match(rf"Which {what}s have a {number} over (.+)\?", question):
                assert answer == [row[0] for row in table if size(row[2]) > size(found[1])]


def test_half_a_list_and_one_name_too_many_score_zero(say):
    task = next(task for task in some(2, 50) if len(task.reference["answer"]) > 1)
    names = task.reference["answer"]
    assert say(DOMAIN, task, [Message("assistant", ", ".join(names))])[1].score == 1.0
    assert say(DOMAIN, task, [Message("assistant", names[0])])[1].score == 0.0
    everyone = ", ".join(row[0] for row in rows(task)[1])
    assert say(DOMAIN, task, [Message("assistant", everyone)])[1].score == 0.0
