"""SQL by its rows on several databases: BIRD's set rule accepts and refuses wrongly, ours does not."""

from __future__ import annotations

import pytest

from temper.verifiers import sql

SCHEMA = "CREATE TABLE p (id INTEGER, name TEXT, age INTEGER, pay DOUBLE); CREATE TABLE o (pid INTEGER, item TEXT);"
ONE = (
    SCHEMA
    + """INSERT INTO p VALUES (1,'ann',30,10.0),(2,'bob',30,20.5),(3,'cy',41,20.5),(4,'dee',NULL,7.25),(5,'ann',19,3);
INSERT INTO o VALUES (1,'pen'),(1,'ink'),(3,'pen');"""
)
TWO = (
    SCHEMA
    + """INSERT INTO p VALUES (1,'eve',22,1.5),(2,'bob',22,2.5),(3,'eve',50,2.5),(7,'fay',51,9.0);
INSERT INTO o VALUES (1,'cup'),(7,'pen'),(7,'cup'),(3,'pen');"""
)


@pytest.fixture
def grade(judged, pool):
    def run(gold: str, query: str, databases=(ONE, TWO), engine="sqlite", **more):
        reference = {"databases": list(databases), "query": gold, **more}
        verifier = sql.create(sql.Config(engine=engine), pool)
        return judged(verifier, reference, "", {"query.sql": query.encode("utf-8", "surrogatepass")})

    return run


# AlibabaResearch/DAMO-ConvAI 177, bird-bench/mini_dev 49: what set(rows) == set(rows) lets through
SET_RULE_ACCEPTS = [
    ("SELECT DISTINCT name FROM p", "SELECT name FROM p"),
    ("SELECT name FROM p ORDER BY pay", "SELECT name FROM p ORDER BY pay DESC"),
    ("SELECT name FROM p ORDER BY pay", "SELECT name FROM p"),
    ("SELECT name FROM p WHERE id IN (SELECT pid FROM o)", "SELECT name FROM p JOIN o ON p.id = o.pid"),
    ("SELECT COUNT(*) FROM o", "SELECT 3"),
    ("SELECT name FROM p WHERE age > 40", "SELECT 'cy'"),
]
RIGHT = [
    ("SELECT name FROM p WHERE age > 40", "select p.name as who from p where not (p.age <= 40);"),
    ("SELECT name, age FROM p", "SELECT age, name FROM p"),  # the columns carry the gold's names
    ("SELECT AVG(pay) FROM p", "SELECT SUM(pay) / COUNT(*) FROM p"),
    ("SELECT COUNT(*) FROM p", "SELECT 1.0 * COUNT(*) FROM p"),
    ("SELECT SUM(pay) FROM p", "SELECT SUM(pay / 3) * 3 FROM p"),
    ("SELECT SUM(pay) - SUM(pay) FROM p WHERE id < 9 UNION SELECT age FROM p",
     "SELECT 0.1 + 0.2 - 0.3 FROM p UNION SELECT age FROM p"),
    ("SELECT age FROM p", "SELECT age FROM p ORDER BY id DESC"),
    ("SELECT name FROM p ORDER BY age", "SELECT name FROM p ORDER BY age, id DESC"),  # ties may change places
    ("SELECT name FROM p ORDER BY pay DESC LIMIT 2", "SELECT name FROM p ORDER BY pay DESC, id DESC LIMIT 2"),
    ("SELECT id FROM p ORDER BY pay DESC LIMIT 1 OFFSET 1", "SELECT id FROM p ORDER BY pay DESC, id LIMIT 1 OFFSET 1"),
    ("SELECT DISTINCT age FROM p ORDER BY p.age", "SELECT age FROM p GROUP BY age ORDER BY 1"),
    ("SELECT name FROM p UNION SELECT item FROM o ORDER BY name",
     "SELECT item FROM o UNION SELECT name FROM p ORDER BY 1"),
    ("SELECT * FROM p ORDER BY age, id", "SELECT id, name, age, pay FROM p ORDER BY age, id"),
    ("SELECT name, COUNT(*) FROM p GROUP BY name ORDER BY COUNT(*) DESC",
     "SELECT name, COUNT(id) n FROM p GROUP BY 1 ORDER BY n DESC, name DESC"),
    ("SELECT name FROM p WHERE id = 1",
     "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 5) "
     "SELECT name FROM p WHERE id = (SELECT MIN(n) FROM c)"),
]  # fmt: skip
WRONG = [
    ("SELECT name, age FROM p", "SELECT name, age, id FROM p"),
    ("SELECT name FROM p", "SELECT name FROM p WHERE 0"),
    ("SELECT AVG(pay) FROM p", "SELECT ROUND(AVG(pay), 1) FROM p"),
    ("SELECT id FROM p", "SELECT CAST(id AS TEXT) FROM p"),
    ("SELECT MIN(pay) lo, MAX(pay) hi FROM p", "SELECT MAX(pay) lo, MIN(pay) hi FROM p"),
    ("SELECT name FROM p ORDER BY pay DESC LIMIT 2", "SELECT name FROM p ORDER BY pay DESC LIMIT 3"),
    ("SELECT name FROM p ORDER BY pay DESC LIMIT 1", "SELECT name FROM p ORDER BY pay LIMIT 1"),
]
REFUSED = [
    "",
    "-- nothing",
    "SELECT name FROM p; SELECT 1",
    "DROP TABLE p",
    "INSERT INTO p SELECT * FROM p",
    "UPDATE p SET age = 1 RETURNING name",
    "CREATE TEMP TABLE t AS SELECT 1",
    "PRAGMA table_info(p)",
    "ATTACH 'x.db' AS x",
    "EXPLAIN SELECT name FROM p",
    "SELECT load_extension('x')",
    "SELECT random()",
    "SELECT nope FROM p",
    "SELECT name FROM p\0",
    "\ud800",
    "SELECT zeroblob(1000000000)",
    "SELECT CAST(x'ff' AS TEXT)",
    "(" * 5000,
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT COUNT(*) FROM c",
]


@pytest.mark.parametrize(("gold", "query"), SET_RULE_ACCEPTS + WRONG)
def test_wrong(grade, gold, query):
    verdict = grade(gold, query)
    assert (verdict.status, verdict.score) == ("graded", 0.0), verdict.evidence
    assert verdict.evidence


@pytest.mark.parametrize(("gold", "query"), RIGHT)
def test_right(grade, gold, query):
    assert grade(gold, gold).score == 1.0
    verdict = grade(gold, query)
    assert verdict.score == 1.0, verdict


@pytest.mark.parametrize("query", REFUSED)
def test_what_is_no_single_reading_statement_is_graded_zero(grade, query):
    verdict = grade("SELECT name FROM p", query)
    assert (verdict.status, verdict.score) == ("graded", 0.0), verdict.evidence


def test_a_task_that_cannot_be_graded_is_the_tasks_fault(grade):
    assert grade("SELECT nope FROM p", "SELECT 1").why == "gold-fails"
    assert grade("SELECT name FROM p", "SELECT 1", [ONE]).why == "reference-missing"
    assert grade("SELECT name FROM p", "SELECT 1", [ONE, "CREATE TABEL"]).why == "gold-fails"
    assert grade("SELECT 7", "SELECT 7").why == "gold-fails"  # a constant passes everywhere


ANY_ORDER = [
    ("SELECT name, COUNT(*) FROM p GROUP BY name", "SELECT COUNT(*), name FROM p GROUP BY name"),
    ("SELECT MIN(pay), MAX(pay) FROM p", "SELECT MAX(pay), MIN(pay) FROM p"),  # each is called what it is
    ("SELECT id, name, age FROM p", "SELECT age a, name b, id c FROM p"),
]


@pytest.mark.parametrize(("gold", "query"), ANY_ORDER)
def test_columns_stand_in_any_one_order_unless_the_task_says_otherwise(grade, gold, query):
    assert grade(gold, query).score == 1.0
    assert grade("SELECT name b, age a FROM p", "SELECT age x, name y FROM p", columns="ordered").score == 0.0


def test_one_order_of_columns_has_to_fit_all_databases(grade):
    """Columns that are swapped in one database only are not the columns that were asked for."""
    gold = "SELECT id, age FROM p"
    swapped = "SELECT IIF(name = 'ann', age, id) x, IIF(name = 'ann', id, age) y FROM p"
    assert grade(gold, swapped).score == 0.0


def test_the_question_decides_whether_order_counts(grade):
    by_age, backwards = "SELECT name FROM p ORDER BY age, id", "SELECT name FROM p ORDER BY age DESC, id"
    assert grade(by_age, backwards).score == 0.0
    assert grade(by_age, backwards, ordered=False).score == 1.0
    two, other = "SELECT id FROM p ORDER BY pay LIMIT 2", "SELECT id FROM p ORDER BY pay DESC LIMIT 2"
    assert grade(two, f"SELECT id FROM ({two}) ORDER BY id DESC", ordered=False).score == 1.0
    assert grade(two, other, ordered=False).score == 0.0


@pytest.mark.parametrize(("gold", "query"), SET_RULE_ACCEPTS + WRONG)
def test_wrong_in_duckdb(grade, gold, query):
    pytest.importorskip("duckdb")
    verdict = grade(gold, query, engine="duckdb")
    assert (verdict.status, verdict.score) == ("graded", 0.0), verdict.evidence


DUCKDB_REFUSED = [query for query in REFUSED if "n + 1" not in query and "zeroblob" not in query]
DUCKDB_REFUSED += ["COPY p TO 'x.csv'", "SELECT * FROM read_csv('/etc/passwd')", "INSTALL httpfs", "SET threads = 9"]


def test_values_that_python_lacks_or_cannot_count_are_graded_in_duckdb(grade):
    pytest.importorskip("duckdb")
    for value in ("array_value([1], [2])", "INTERVAL 1000000000 DAYS"):
        verdict = grade("SELECT name FROM p", f"SELECT {value} FROM p", engine="duckdb")
        assert (verdict.status, verdict.score) == ("graded", 0.0), verdict
    not_a_number = "SELECT 'nan'::DOUBLE, id FROM p"
    assert grade(not_a_number, f"{not_a_number} ORDER BY id", engine="duckdb").score == 1.0


def test_names_and_texts_are_no_functions_in_duckdb(grade):
    pytest.importorskip("duckdb")
    query = "SELECT name AS today FROM p WHERE name <> 'now' -- random, as uuid"
    assert grade("SELECT name FROM p", query, engine="duckdb").score == 1.0
    for function in ("random()", "now ()", "current_timestamp", "uuid()", "get_current_timestamp()"):
        verdict = grade("SELECT name FROM p", f"SELECT name FROM p WHERE {function} IS NOT NULL", engine="duckdb")
        assert "gives another answer each time" in verdict.evidence[0].text, function


def test_right_and_refused_in_duckdb(grade):
    pytest.importorskip("duckdb")
    for gold, query in RIGHT[:-1] + ANY_ORDER:
        verdict = grade(gold, query, engine="duckdb")
        assert verdict.score == 1.0, (query, verdict)
    for query in DUCKDB_REFUSED:
        verdict = grade("SELECT name FROM p", query, engine="duckdb")
        assert (verdict.status, verdict.score) == ("graded", 0.0), (query, verdict)
