"""The mutation engine: from a gold answer, others that mean the same and others that are wrong by one change.

`forms` and `misses` go by the verifier's name and by the artifacts' suffixes. A change that may leave the meaning as it
was comes with a screen (`audit.screens`), which has to confirm it; what cannot be confirmed is no case. Which changes
are wrong in a domain of its own kind, only its author knows: those are the domain's `cases(task)`.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from msgspec.structs import replace

from temper.core.task import Case, Task
from temper.verifiers.boxes import dotted

MOST = 6  # near misses of a task by the engine
_SCREENS = "temper.verifiers.audit.screens"
_VALUE = re.compile(r"-?\d+(?:/\d+|\.\d+)?")


class Miss(NamedTuple):
    """A wrong answer; with a screen (function, *arguments), wrong if that says so."""

    case: Case
    screen: tuple[Any, ...] = ()


def forms(verifier: str, gold: Case) -> Iterator[Case]:
    """The gold answer in other words."""
    if verifier == "math" and (value := _final(gold.answer)):
        for why, text in _spellings(value):
            yield replace(gold, why=why, answer=text)
    if gold.answer:
        yield replace(gold, why="a line end more", answer=gold.answer + "\n")
    for path, content in gold.artifacts.items():
        if rewrite := _REWRITES.get(path.rpartition(".")[2]):
            for why, text in rewrite(content.decode("utf-8", "replace")):
                yield _with(gold, path, text, f"{path} {why}", right=True)


def misses(verifier: str, task: Task, gold: Case) -> list[Miss]:
    """At most `MOST`, drawn by the task's id."""
    found = list(_MISSES[verifier](task, gold)) if verifier in _MISSES else []
    return random.Random(task.id).sample(found, min(MOST, len(found)))


def differ(gold: Case, other: Case) -> bool:
    """Whether one task's gold answer can be wrong for another: their results are not the same."""
    if gold.artifacts or other.artifacts:
        return gold.artifacts != other.artifacts
    return (_final(gold.answer) or gold.answer) != (_final(other.answer) or other.answer)


def _final(answer: str) -> str:
    """The last number, "" when there is none."""
    return (_VALUE.findall(answer) or [""])[-1]


def _spellings(value: str) -> Iterator[tuple[str, str]]:
    for why, text in (
        ("bare", "{}"), ("boxed", "\\boxed{{{}}}"), ("a sentence", "So the answer is {}."), ("in dollars", "${}$"),
        ("after ####", "Some working, 3 - 1 = 2.\n#### {}"), ("bold", "Answer: **{}**"), ("padded", "  {} \n\n"),
    ):  # fmt: skip
        yield why, text.format(value)
    if "/" in value:
        top, bottom = value.split("/")
        sign = "-" if top.startswith("-") else ""
        yield "a LaTeX fraction", f"\\boxed{{{sign}\\frac{{{top.lstrip('-')}}}{{{bottom}}}}}"
        yield "not reduced", f"{2 * int(top)}/{2 * int(bottom)}"
    elif "." not in value:
        yield "a decimal", f"{value}.0"
        yield "with thousands", f"{int(value):,}"


def _math(task: Task, gold: Case) -> Iterator[Miss]:
    value = _final(gold.answer)
    if not value:
        return
    head, _, tail = gold.answer.rpartition(value)
    exact = Fraction(value)
    others = {
        "one more": exact + 1, "one less": exact - 1, "ten times": exact * 10, "a tenth": exact / 10,
        "the other sign": -exact, "upside down": 1 / exact if exact else exact + 2,
    }  # fmt: skip
    digits = value[::-1] if value.isdigit() else ""
    others |= {"its digits turned round": Fraction(digits)} if digits else {}
    for why, wrong in others.items():
        if wrong != exact:
            yield Miss(replace(gold, right=False, why=why, answer=f"{head}{wrong}{tail}"))


def _exact(task: Task, gold: Case) -> Iterator[Miss]:
    golds = task.reference["answer"]
    known = {text.strip().casefold() for text in ([golds] if isinstance(golds, str) else golds)}
    said = gold.answer.strip()
    for why, text in (("a letter more", said + "x"), ("a letter less", said[:-1]), ("said twice", f"{said} {said}")):
        if text.strip().casefold() not in known:
            yield Miss(replace(gold, right=False, why=why, answer=text))


def _tools(task: Task, gold: Case) -> Iterator[Miss]:
    state, calls = (json.loads(gold.artifacts[name]) for name in ("state.json", "calls.json"))
    for key, value in state.items():
        changed = value + 1 if type(value) is int else f"{value}x"
        yield Miss(_with(gold, "state.json", json.dumps({**state, key: changed}), f"state {key} changed"))
    yield Miss(_with(gold, "state.json", json.dumps({**state, "new thing": 1}), "collateral: one entry more"))
    if state:
        without = dict(list(state.items())[1:])
        yield Miss(_with(gold, "state.json", json.dumps(without), "collateral: one entry less"))
    required = task.reference.get("calls") or ()
    if len(required) != len(calls):
        return
    for n, call in enumerate(calls):
        yield Miss(_with(gold, "calls.json", json.dumps(calls[:n] + calls[n + 1 :]), f"without call {n}"))
        for name, value in call["arguments"].items():
            changed = value + 1 if type(value) is int else f"{value}x"
            other = {**call, "arguments": {**call["arguments"], name: changed}}
            yield Miss(_with(gold, "calls.json", json.dumps([*calls[:n], other, *calls[n + 1 :]]), f"call {n}, {name}"))
    if task.reference.get("order"):
        yield Miss(_with(gold, "calls.json", json.dumps(calls[::-1]), "calls in reverse"))


def _code(task: Task, gold: Case) -> Iterator[Miss]:
    reference = task.reference
    if not (isinstance(reference, Mapping) and reference.get("cases") and reference.get("module")):
        return
    calls = [[case["function"], case.get("args", []), case.get("kwargs", {})] for case in reference["cases"]]
    module = dotted(reference["module"])
    sources = {path: content.decode() for path, content in gold.artifacts.items() if path.endswith(".py")}
    for path, source in sources.items():
        for why, text in python_mutants(source):
            screen = (f"{_SCREENS}:python", sources, {**sources, path: text}, module, calls)
            yield Miss(_with(gold, path, text, f"{path}: {why}"), screen)


def python_mutants(source: str) -> Iterator[tuple[str, str]]:
    """(what was changed, program) for each program that differs from `source` in one place."""
    for n, node in enumerate(ast.walk(ast.parse(source))):
        for field, value in _slips(node):
            tree = ast.parse(source)
            target = next(other for at, other in enumerate(ast.walk(tree)) if at == n)
            setattr(target, field, value)
            where = f"line {getattr(node, 'lineno', 0)}: {type(node).__name__} {field}"
            yield where, ast.unparse(ast.fix_missing_locations(tree))


_SWAPS = {
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def _slips(node: ast.AST) -> Iterator[tuple[str, Any]]:
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
        yield "ops", [_SWAPS[type(node.ops[0])](), *node.ops[1:]]
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _SWAPS:
        yield "op", _SWAPS[type(node.op)]()
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "value", node.value + 1
        yield "value", node.value - 1
    if isinstance(node, ast.If | ast.While):
        yield "test", ast.UnaryOp(ast.Not(), node.test)
    if isinstance(node, ast.Return) and node.value is not None:
        yield "value", ast.Constant(None)


def _sql(task: Task, gold: Case) -> Iterator[Miss]:
    query, databases = gold.artifacts["query.sql"].decode(), task.reference["databases"]
    for why, text in sql_mutants(query):
        yield Miss(_with(gold, "query.sql", text, why), (f"{_SCREENS}:sql", databases, query, text))


def sql_mutants(query: str) -> Iterator[tuple[str, str]]:
    """(what was changed, query) for each query that differs in one place."""
    import sqlglot
    from sqlglot import exp

    swaps = {
        exp.GT: exp.GTE, exp.GTE: exp.GT, exp.LT: exp.LTE, exp.LTE: exp.LT, exp.EQ: exp.NEQ, exp.NEQ: exp.EQ,
        exp.Max: exp.Min, exp.Min: exp.Max, exp.Sum: exp.Avg, exp.Avg: exp.Sum, exp.And: exp.Or,
    }  # fmt: skip

    def slips(node: exp.Expression) -> Iterator[tuple[str, exp.Expression]]:
        if other := swaps.get(type(node)):
            yield f"{node.key} to {other.key}", other(**node.copy().args)
        match node:
            case exp.Literal(is_string=False):
                yield f"{node.this} and one", exp.Literal.number(f"{float(node.this) + 1:g}")
            case exp.And():
                yield "without a condition", node.left.copy()
            case exp.Ordered():
                down = bool(node.args.get("desc"))
                yield "the other order", exp.Ordered(this=node.this.copy(), desc=not down, nulls_first=down)
            case exp.Column() if len(columns) > 1:
                other = columns[(columns.index(node.name) + 1) % len(columns)]
                yield f"{node.name} to {other}", exp.column(other, table=node.table or None)

    tree = sqlglot.parse_one(query, dialect="sqlite")
    columns = sorted({column.name for column in tree.find_all(exp.Column)})
    for n, node in enumerate(tree.walk()):
        for why, changed in slips(node):
            copy = tree.copy()
            next(found for at, found in enumerate(copy.walk()) if at == n).replace(changed)
            yield why, copy.sql(dialect="sqlite")


_MISSES = {"math": _math, "exact": _exact, "tools": _tools, "code": _code, "sql": _sql}


def _python_forms(text: str) -> Iterator[tuple[str, str]]:
    yield "with a comment at its end", f"{text}\n\n# checked by hand\n"
    yield "with other line ends", text.replace("\r\n", "\n").replace("\n", "\r\n")
    yield "without comments, formatted anew", ast.unparse(ast.parse(text)) + "\n"


def _sql_forms(text: str) -> Iterator[tuple[str, str]]:
    import sqlglot

    query = text.strip().rstrip(";")
    yield "with a semicolon", f"{query};"
    yield "on several lines, after a comment", f"-- the query\n{query.replace(' FROM ', chr(10) + 'FROM ')}\n"
    yield "formatted anew", sqlglot.transpile(query, read="sqlite", write="sqlite", pretty=True)[0]


def _json_forms(text: str) -> Iterator[tuple[str, str]]:
    value = json.loads(text)
    yield "indented", json.dumps(value, indent=2)
    if isinstance(value, dict):
        yield "with its keys in another order", json.dumps(dict(reversed(value.items())))


_REWRITES = {"py": _python_forms, "sql": _sql_forms, "json": _json_forms}


def _with(case: Case, path: str, text: str, why: str, right: bool = False) -> Case:
    return replace(case, right=right, why=why, artifacts={**case.artifacts, path: text.encode()})
