"""SQL over small generated tables: the model writes a query, sees its rows or the error, and may try again.

It ends with a message without a call, such as "done". Graded is the last query that ran, on the database that the
model saw and on two or more with other rows. These are drawn until every near miss of the gold query (another column,
aggregate, comparison, order, a condition left out) gives another result on one of them.

Level 1: one table, one condition or aggregate. Level 2: two conditions, groups, order, distinct. Level 3: two tables.
The query runs in the sandbox, against a database in memory that is made anew for each call and only allows reading.
"""

# ruff: noqa: E501, SIM905  (tables with one entry a line, words in one string)

from __future__ import annotations

import contextlib
import random
import re
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from temper.core.protocols import Environment, Resources
from temper.core.task import Case, Limits, Message, SandboxSpec, Split, Task, ToolCall
from temper.domains.generated import LEVELS, Draft, stream
from temper.rollouts.environments import ToolEnvironment
from temper.rollouts.toolsets import ToolError, Toolset, tool
from temper.verifiers.audit.bench import Bench

DATABASES = 3  # at least
_RUNNER = """
import sqlite3, sys
db = sqlite3.connect(":memory:")
db.executescript(open("data.sql").read())
reads = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
db.set_authorizer(lambda action, *rest: sqlite3.SQLITE_OK if action in reads else sqlite3.SQLITE_DENY)
try:
    rows = db.execute(sys.stdin.read()).fetchmany(7)
except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
    sys.exit(f"error: {error}")
print("\\n".join("|".join(map(str, row)) for row in rows[:6]) + ("\\n..." if rows[6:] else "") or "no rows")
"""


def create(config: object = None) -> Sql:
    return Sql()


class Sql:
    """`core.protocols.Domain`."""

    name = "sql"
    levels = LEVELS

    def tasks(self, split: Split, level: int, seed: int = 0) -> Iterator[Task]:
        return stream(self.name, draw, split, level, seed)

    def environment(self, task: Task, resources: Resources) -> Environment:
        return ToolEnvironment(task, SqlTools(), resources)

    def verifier(self, task: Task) -> tuple[str, Mapping[str, Any]]:
        return "sql", {}

    def gold(self, task: Task) -> tuple[Message, ...]:
        call = ToolCall("sql", {"query": task.reference["query"]})
        return (Message("assistant", calls=(call,)), Message("assistant", "done"))

    def cases(self, task: Task) -> Iterator[Case]:
        """The query in other words, also in those of sqlglot's optimiser; and its near misses."""
        import sqlglot
        from sqlglot import exp

        gold: str = task.reference["query"]
        tree = sqlglot.parse_one(gold, dialect="sqlite")
        selects = tree.expressions
        forms = {
            "as the author wrote it": gold,
            "in small letters": re.sub(r"[A-Z]{2,}(?=[ (])", lambda word: word[0].lower(), gold),
            "on several lines": f"\n{sqlglot.transpile(gold, 'sqlite', 'sqlite', pretty=True)[0]} ;\n",
            "in brackets": re.sub(r"(?<=WHERE )([^()]+?)(?= GROUP| ORDER|$)", r"(\1)", gold),
            "with a condition that always holds": gold.replace("WHERE ", "WHERE 1 = 1 AND ")
            if " OR " not in gold
            else gold,
            "counting ones": gold.replace("COUNT(*)", "COUNT(1)"),
            "with the comparison turned": re.sub(r"(?<=WHERE )(\w+) ([<>]) (\d+)(?=$| GROUP| ORDER)", _turned, gold),
            "with columns in another order": tree.copy().select(*selects[::-1], append=False).sql("sqlite"),
            "under other column names": tree.copy()
            .select(*(exp.alias_(e.copy(), f"c{n}") for n, e in enumerate(selects)), append=False)
            .sql("sqlite"),
        }
        for why, query in forms.items():
            yield Case(right=True, why=why, artifacts={"query.sql": query.encode()})
        theme = next(theme for theme in THEMES if re.search(rf"\b{theme.table}\b", gold))
        more = {
            re.sub(r"^SELECT( DISTINCT)? ", r"SELECT\1 1, ", gold),
            "SELECT 1",
            f"SELECT * FROM {theme.table}",
            f"DELETE FROM {theme.table}",
        }
        for query in sorted(_near_misses(gold, theme) | more):
            yield Case(right=False, why=f"one change: {query}"[:80], artifacts={"query.sql": query.encode()})

    async def second_opinion(self, task: Task, case: Case, bench: Bench) -> bool | None:
        """No difference in rows, on the databases and on shuffled ones. Columns in another order are left open."""
        query = case.artifacts.get("query.sql", b"").decode("utf-8", "replace")
        asked = (task.reference["databases"], task.reference["query"], query)
        exact, loose = [
            not await bench.pool.run("temper.verifiers.audit.screens:sql", *asked, whole, seconds=5.0)
            for whole in (True, False)
        ]
        return True if exact else None if loose else False


def _turned(found: re.Match[str]) -> str:
    return f"{found[3]} {'<' if found[2] == '>' else '>'} {found[1]}"


class LastQuery(Struct):
    query: str = ""


class SqlTools(Toolset):
    """One tool over the sandbox's `data.sql`."""

    State = LastQuery
    output_bytes = 300

    @tool
    async def sql(self, query: str) -> str:
        """Run a query and show its rows."""
        done = await self.sandbox.exec(
            ["python3", "-I", "-S", "run.py"], stdin=query.encode("utf-8", "replace"), seconds=self.seconds
        )
        if done.cause != "exited":
            raise ToolError(f"the query was ended: {done.cause}")
        if done.ok:
            self.state.query = query
        return done.text.strip()

    def artifacts(self) -> dict[str, bytes]:
        return {"query.sql": self.state.query.encode()} if self.state.query else {}


class Theme(Struct, frozen=True):
    """A table: its name, the column that names a row, one with few values, and two with numbers."""

    table: str
    label: str
    kind: str
    kinds: tuple[str, ...]
    first: str
    second: str


THEMES = tuple(
    Theme(table, label, kind, tuple(kinds.split()), first, second)
    for table, label, kind, kinds, first, second in (
        ("pets", "name", "kind", "cat dog fish bird", "age", "weight"),
        ("books", "title", "genre", "crime drama poem", "pages", "price"),
        ("shops", "name", "city", "Rome Paris London", "staff", "rent"),
        ("cars", "model", "color", "red blue green", "age", "speed"),
        ("plants", "name", "soil", "sand clay rock", "height", "water"),
        ("games", "title", "type", "card board ball", "players", "minutes"),
        ("teams", "name", "country", "Spain Italy Japan", "wins", "goals"),
        ("meals", "dish", "taste", "sweet sour hot", "fat", "sugar"),
        ("jobs", "title", "field", "law art health", "hours", "pay"),
        ("trips", "name", "place", "sea hill lake", "days", "cost"),
        ("films", "title", "style", "horror comedy war", "length", "score"),
        ("phones", "model", "brand", "Nokia Sony Apple", "size", "price"),
    )
)
_NAMES = "Ann Tom Ben Sam Kim Max Leo Eva Amy Dan Joy Ray Ivy Guy Ron Sue".split()
_TOWNS = "York Bath Bonn".split()

# Question and query. {t} table, {l} label, {c} kind and its value {v}, {n} and {m} numbers, {k} and {j} constants.
_SHOW = (
    ("{l} of {t}", "{l}"), ("how many {t}", "COUNT(*)"), ("highest {n} of {t}", "MAX({n})"),
    ("lowest {n} of {t}", "MIN({n})"), ("average {n} of {t}", "AVG({n})"), ("total {n} of {t}", "SUM({n})"),
)  # fmt: skip
_WHERE = (("with {c} {v}", "{c} = '{v}'"), ("with {m} over {k}", "{m} > {k}"), ("with {m} under {k}", "{m} < {k}"))
_BOTH = (
    (("{c} {v}", "{c} = '{v}'"),),
    (("{m} at least {k}", "{m} >= {k}"), ("{m} at most {k}", "{m} <= {k}")),
    (("{n} over {j}", "{n} > {j}"), ("{n} under {j}", "{n} < {j}")),
)
_JOIN = "{t} JOIN owners ON {t}.owner_id = owners.id"
LEVEL_TWO = (
    ("how many {t} per {c}", "SELECT {c}, COUNT(*) FROM {t} GROUP BY {c}"),
    ("how many {t} with {m} over {k} per {c}", "SELECT {c}, COUNT(*) FROM {t} WHERE {m} > {k} GROUP BY {c}"),
    ("total {n} of {t} with {m} under {k} per {c}", "SELECT {c}, SUM({n}) FROM {t} WHERE {m} < {k} GROUP BY {c}"),
    ("{l} of {t} with {m} over {k}, highest {n} first", "SELECT {l} FROM {t} WHERE {m} > {k} ORDER BY {n} DESC"),
    ("{l} of the 2 {t} with the lowest {n}, lowest first", "SELECT {l} FROM {t} ORDER BY {n} LIMIT 2"),
    ("different {c} of {t} with {m} over {k}", "SELECT DISTINCT {c} FROM {t} WHERE {m} > {k}"),
)
LEVEL_THREE = (
    ("owner and {l} of {t} with {n} over {k}", f"SELECT owner, {{l}} FROM {_JOIN} WHERE {{n}} > {{k}}"),
    ("{l} of {t} in {w} with {n} under {k}", f"SELECT {{l}} FROM {_JOIN} WHERE town = '{{w}}' AND {{n}} < {{k}}"),
    ("total {n} per town of {t} with {m} over {k}", f"SELECT town, SUM({{n}}) FROM {_JOIN} WHERE {{m}} > {{k}} GROUP BY town"),
    ("towns with more than 1 of {t} with {m} under {k}", f"SELECT town FROM {_JOIN} WHERE {{m}} < {{k}} GROUP BY town HAVING COUNT(*) > 1"),
    ("owners without {t} with {n} over {k}", "SELECT owner FROM owners WHERE id NOT IN (SELECT owner_id FROM {t} WHERE {n} > {k})"),
    ("{l} of {t} with {n} above the average {n} and {m} over {k}", "SELECT {l} FROM {t} WHERE {n} > (SELECT AVG({n}) FROM {t}) AND {m} > {k}"),
    ("{l} of {t} in {w} with {m} over {k}, highest {n} first", f"SELECT {{l}} FROM {_JOIN} WHERE town = '{{w}}' AND {{m}} > {{k}} ORDER BY {{n}} DESC"),
)  # fmt: skip


def draw(rng: random.Random, level: int) -> Draft:
    theme = rng.choice(THEMES)
    n, m = rng.sample((theme.first, theme.second), 2)
    filling = {"t": theme.table, "l": theme.label, "c": theme.kind, "v": rng.choice(theme.kinds), "n": n, "m": m}
    low, high = (10, 20) if level == 3 else (4, 26)
    filling |= {"k": rng.randint(low, high), "j": rng.randint(low, high), "w": rng.choice(_TOWNS)}
    question, query = (part.format(**filling) for part in _shape(rng, level))

    columns = [theme.label, theme.kind, theme.first, theme.second, *(["owner_id"] if level == 3 else [])]
    schema = f"{theme.table}({', '.join(columns)})" + ("\nowners(id, owner, town)" if level == 3 else "")
    asked = f"{schema}\n{question}"

    def build(rng: random.Random) -> Task:
        scripts = _databases(rng, theme, columns, query)
        return Task(
            id="",
            domain=Sql.name,
            messages=(Message("user", asked),),
            tools=SqlTools().specs(),
            sandbox=SandboxSpec(files={"data.sql": scripts[0].encode(), "run.py": _RUNNER.encode()}),
            limits=Limits(turns=3 + level, tokens=96 * level, turn_tokens=48 * level, tool_seconds=5.0),
            artifacts=("query.sql",),
            reference={"databases": scripts, "query": query},
        )

    return Draft(query, asked, build)


def _shape(rng: random.Random, level: int) -> tuple[str, str]:
    """A question and its query, to be filled in."""
    if level == 3:
        return rng.choice(LEVEL_THREE)
    if level == 2 and rng.random() < 0.6:
        return rng.choice(LEVEL_TWO)
    asked, shown = rng.choice(_SHOW)
    if level == 1:
        words, condition = rng.choice(_WHERE)
        return f"{asked} {words}", f"SELECT {shown} FROM {{t}} WHERE {condition}"
    (one, first), (two, second) = (rng.choice(column) for column in rng.sample(_BOTH, 2))
    word = rng.choice(("and", "or"))
    if "{n}" in first + second:  # the highest n over j is the highest n: such a condition would say nothing
        asked, shown = rng.choice(_SHOW[:2])
    return f"{asked} with {one} {word} {two}", f"SELECT {shown} FROM {{t}} WHERE {first} {word.upper()} {second}"


# Near misses of a query: a pattern, and what is put in its place.
_SLIPS = (
    ("MAX", "MIN"), ("MIN", "MAX"), ("SUM", "AVG"), ("AVG", "SUM"), (r"COUNT\(\*\)", "1"), (r"(?<=\w) > (?=\d)", " >= "),
    (r" > \(", " >= ("), (" > ", " < "), (" >= ", " > "), (" < ", " <= "), (" < ", " > "), (" <= ", " < "), (" = '", " <> '"),
    (" AND ", " OR "), (" OR ", " AND "), (r" (AND|OR) (?!.*\)).*?(?= GROUP| ORDER|$)", ""), ("DISTINCT ", ""), (" DESC", ""),
    (r" WHERE [^()]*?(?= GROUP| ORDER|\)|$)", ""), (" HAVING .*", ""), (" LIMIT 2", ""), (r" (ORDER BY \w+)", r" \1 DESC"),
)  # fmt: skip


def _near_misses(query: str, theme: Theme) -> set[str]:
    """The query with one slip, one number off by one, or one column mistaken for another."""
    columns = ((theme.first, theme.second), (theme.second, theme.first), (theme.label, theme.kind))
    slips = _SLIPS + tuple((rf"\b{old}\b", new) for old, new in columns)
    misses = {re.sub(pattern, new, query, count=1) for pattern, new in slips}
    named = (theme.label, theme.kind, theme.first, theme.second, "owner", "town", "owner_id")
    names = [name for name in named if re.search(rf"\b{name}\b", query)]
    for found in re.finditer(rf"(?<=[<>=] )[0-9]+|\b({'|'.join(names)})\b(?!\.)", query):
        others = [name for name in names if name != found[0]] if found[1] else [int(found[0]) + by for by in (-1, 1)]
        misses |= {f"{query[: found.start()]}{other}{query[found.end() :]}" for other in others}
    return misses - {query}


def _databases(rng: random.Random, theme: Theme, columns: list[str], query: str) -> list[str]:
    """Scripts of databases on which the gold query shows something, and no near miss shows the same on all."""
    constants = sorted({int(n) + by for n in re.findall(r"(?<=[<>=] )\d+", query) for by in (-1, 0, 1)} - {0, 1, 2})
    alive = _near_misses(query, theme)
    scripts: list[str] = []
    rows: list[Any] = []
    for _ in range(2000):
        script = _database(rng, theme, columns, constants)
        shown = _results(script, [query, *alive])
        killed = {miss for miss in alive if shown[miss] != shown[query]}
        useful = killed or (not alive and shown[query] not in rows)
        if useful and any(shown[query][0] if shown[query] else ()):
            scripts.append(script)
            rows.append(shown[query])
            alive -= killed
        if not alive and len(scripts) >= DATABASES and any(found != rows[0] for found in rows):
            return scripts
    raise AssertionError(f"no databases tell {query} from {sorted(alive)}")


def _database(rng: random.Random, theme: Theme, columns: list[str], constants: list[int]) -> str:
    """One instance. Numbers differ within a column, so that no order is a tie; the query's constants are among them."""
    size = max(rng.randint(8, 10) if "owner_id" in columns else rng.randint(5, 7), len(constants) + 1)
    others = [n for n in range(1, 31) if n not in constants]
    first, second = (rng.sample([*constants, *rng.sample(others, size - len(constants))], size) for _ in range(2))
    rows = zip(
        rng.sample(_NAMES, size), rng.choices(theme.kinds, k=size), first, second,
        rng.choices((1, 2, 3, 4), k=size), strict=True,
    )  # fmt: skip
    values = ", ".join(str(row[: len(columns)]) for row in rows)
    script = f"CREATE TABLE {theme.table}({', '.join(columns)}); INSERT INTO {theme.table} VALUES {values};"
    if "owner_id" in columns:
        owners = ", ".join(str((n, rng.choice(_NAMES), rng.choice(_TOWNS))) for n in range(1, 5))
        script += f" CREATE TABLE owners(id, owner, town); INSERT INTO owners VALUES {owners};"
    return script


def _results(script: str, queries: list[str]) -> dict[str, list[tuple[Any, ...]]]:
    """What each query shows; in a fixed order where the query asks for none. A query that fails shows nothing."""
    shown = {}
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.executescript(script)
        for query in queries:
            try:
                rows = db.execute(query).fetchall()
            except sqlite3.OperationalError:
                rows = []
            shown[query] = rows if "ORDER BY" in query else sorted(rows, key=repr)
    return shown
