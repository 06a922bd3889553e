import itertools

import pytest

from temper.core.task import Message, ToolCall
from temper.domains import sql

DOMAIN = sql.create()


def calls(*made):
    return Message("assistant", calls=tuple(ToolCall(*call) for call in made))


def some(level, n=1, seed=0):
    return list(itertools.islice(DOMAIN.tasks("train", level, seed), n))


def query(text):
    return calls(("sql", {"query": text}))


@pytest.mark.parametrize("level", [1, 2, 3])
def test_near_misses_score_zero(level, say):
    swaps = [
        (" > ", " < "),
        (" < ", " > "),
        ("MAX", "MIN"),
        ("MIN", "MAX"),
        ("SUM", "AVG"),
        ("AVG", "SUM"),
        (" DESC", ""),
    ]
    for task in some(level, 6):
        gold = task.reference["query"]
        for wrong in {gold.replace(*swap) for swap in swaps} | {gold.partition(" WHERE ")[0]} - {gold}:
            if wrong != gold:
                assert say(DOMAIN, task, [query(wrong)])[1].score == 0, (gold, wrong)


def test_the_rows_of_the_shown_database_as_constants_score_zero(say):
    (task,) = some(1)
    rows, _ = say(DOMAIN, task, [query(task.reference["query"])])
    values = " UNION ALL ".join(f"SELECT '{row}'" for row in rows[0].split("\n"))
    assert say(DOMAIN, task, [query(values)])[1].score == 0


def test_errors_are_shown_and_the_last_query_that_ran_counts(say):
    (task,) = some(1)
    gold = query(task.reference["query"])
    outputs, verdict = say(
        DOMAIN, task, [query("SELECT x FROM nowhere"), gold, query("SELECT"), Message("assistant", "done")]
    )
    assert outputs[0] == "error: no such table: nowhere"
    assert outputs[2].startswith("error: incomplete input")
    assert verdict.score == 1


@pytest.mark.parametrize(
    "attack", ["DROP TABLE pets", "ATTACH 'x.db' AS x", "PRAGMA user_version = 3", "SELECT 1; SELECT 2", "\ud800"]
)
def test_only_one_reading_statement_runs(attack, say):
    (task,) = some(1)
    outputs, verdict = say(DOMAIN, task, [query(attack)])
    assert outputs[0].startswith("error:")
    assert verdict.why == "artifact-missing"


def test_a_query_without_end_is_ended(say):
    (task,) = some(1)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    domain, limits = DOMAIN, task.limits
    task = type(task)(
        **{f: getattr(task, f) for f in task.__struct_fields__} | {"limits": type(limits)(tool_seconds=0.5)}
    )
    outputs, _ = say(domain, task, [query(endless)])
    assert outputs == ["error: the query was ended: deadline"]
