"""Python modules as text: their public interface, and numbers by which a refactoring is judged. Nothing is run.

Metrics: duplicates (statements in runs of three or more that occur again, whatever their names), longest (statements of
the longest function), complexity (the highest cyclomatic complexity of a function, McCabe), nesting (the deepest
control flow), uses (of a name), literals (occurrences of a constant, as Python writes it), globals (statements).
"""

from __future__ import annotations

import ast
import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

_RUN = 3
_LONGEST = 10_000  # bits of a number, fewer than the digits that Python converts at most
_HIDING = {
    "exec", "eval", "compile", "__import__", "globals", "locals", "setattr", "getattr", "vars", "builtins",
    "__builtins__", "importlib", "runpy",
}  # fmt: skip
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.match_case)
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.With, ast.AsyncWith, ast.Match)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Files = dict[str, str]


def check(
    new: Files, old: Files, renamed: dict[str, str], adds: list[str], goals: list[dict[str, Any]]
) -> tuple[dict[str, float], list[str]]:
    """(components, why not). The component "old" is 1 where the old code reaches all goals."""
    try:
        trees = {path: parsed(text) for path, text in new.items()}
        after = public(trees)
    except (SyntaxError, ValueError) as error:
        return {"interface": 0.0, "goals": 0.0}, [f"the new code does not compile: {error}"]
    before = {path: parsed(text) for path, text in old.items()}
    whys = _interface(after, public(before), renamed, adds)
    components = {"interface": float(not whys)}
    if hiding := _names(trees) & _HIDING - _names(before):
        whys.append(f"the new code uses {sorted(hiding)[0]}, behind which code could hide")
    missed = [goal for goal in goals if measure(trees, goal["metric"], goal["of"]) > goal["most"]]
    components["goals"] = 1 - len(missed) / len(goals)
    for goal in missed:
        now = measure(trees, goal["metric"], goal["of"])
        whys.append(f"{goal['metric']} {goal['of']}".rstrip() + f" is {now:g}, asked for was at most {goal['most']:g}")
    components["old"] = float(all(measure(before, goal["metric"], goal["of"]) <= goal["most"] for goal in goals))
    return components, whys


def measure(trees: dict[str, ast.Module], metric: str, of: str = "") -> float:
    return METRICS[metric](list(trees.values()), of)


def _interface(after: Files, before: Files, renamed: dict[str, str], adds: list[str]) -> list[str]:
    wanted = {renamed.get(name, name): shape for name, shape in before.items()}
    whys = [f"{name} is gone" for name in wanted if name not in after]
    whys += [f"{name} is missing" for name in adds if name not in after]
    whys += [f"{name} is public and new" for name in after if name not in wanted and name not in adds]
    whys += [
        f"{name} takes {after[name]}, not {wanted[name]}"
        for name in wanted
        if after.get(name, wanted[name]) != wanted[name]
    ]
    return whys


def public(trees: dict[str, ast.Module]) -> dict[str, str]:
    """Public functions, classes, methods and constants by their qualified name, with their parameters."""
    found: dict[str, str] = {}

    def look(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
                found.update({prefix + name: "a value" for name in names if not name.startswith("_")})
            elif isinstance(node, _DEFINITIONS) and (not node.name.startswith("_") or node.name.endswith("__")):
                found[prefix + node.name] = "a class" if isinstance(node, ast.ClassDef) else _parameters(node.args)
                if isinstance(node, ast.ClassDef):
                    look(node.body, f"{prefix}{node.name}.")

    for tree in trees.values():
        look(tree.body, "")
    return found


def _parameters(args: ast.arguments) -> str:
    """Parameters with defaults and without annotations."""
    args = copy.deepcopy(args)
    for arg in ast.walk(args):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    return f"({ast.unparse(args)})"


def parsed(text: str) -> ast.Module:
    """Raises SyntaxError or ValueError, also for a whole number that Python would not write in full."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value.bit_length() > _LONGEST:
            raise ValueError(f"line {node.lineno}: a number of more than {_LONGEST} bits")
    return tree


def _names(trees: dict[str, ast.Module]) -> set[str]:
    """What is read by its name or imported, and the functions that run texts, however they are reached."""
    found: set[str] = set()
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr="exec" | "eval" | "__import__" as name):
                found.add(name)
            case ast.alias(name=name) | ast.ImportFrom(module=str() as name):
                found.add(name.partition(".")[0])
    return found


def _functions(trees: list[ast.Module]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for tree in trees:
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements below a node, in the order of the text, without docstrings."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt) and not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
            yield child
        yield from _statements(child)


def _duplicates(trees: list[ast.Module], of: str) -> float:
    lines = [
        _shape(statement)
        for tree in trees
        for function in _functions([tree])
        for statement in [*_statements(function), None]
    ]
    seen: Counter[tuple[str, ...]] = Counter()
    repeated: set[int] = set()
    for at in range(len(lines) - _RUN + 1):
        run = tuple(lines[at : at + _RUN])
        if "" in run:
            continue
        if seen[run]:
            repeated.update(range(at, at + _RUN))
        seen[run] += 1
    return len(repeated)


def _shape(statement: ast.stmt | None) -> str:
    """A statement without what is below it, and with all names alike; "" between functions."""
    if statement is None:
        return ""
    parts = [type(statement).__name__]
    for child in ast.iter_child_nodes(statement):
        for node in ast.walk(child) if not isinstance(child, ast.stmt) else ():
            parts.append(repr(node.value) if isinstance(node, ast.Constant) else type(node).__name__)
            parts += [node.attr] if isinstance(node, ast.Attribute) else []
    return " ".join(parts)


def _complexity(function: ast.AST) -> int:
    found = 1
    for node in ast.walk(function):
        found += isinstance(node, _BRANCHES)
        found += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
        found += len(node.ifs) + 1 if isinstance(node, ast.comprehension) else 0
    return found


def _depth(node: ast.AST, depth: int = 0) -> int:
    """The deepest nesting; an elif is no deeper than its if."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        chained = isinstance(node, ast.If) and [child] == node.orelse and isinstance(child, ast.If)
        deepest = max(deepest, _depth(child, depth + (isinstance(child, _BLOCKS) and not chained)))
    return deepest


def _uses(trees: list[ast.Module], of: str) -> float:
    found = 0
    for node in (node for tree in trees for node in ast.walk(tree)):
        named = [getattr(node, key, None) for key in ("id", "attr", "name", "arg", "asname")]
        found += of in named
    return found


def _literals(trees: list[ast.Module], of: str) -> float:
    return sum(isinstance(node, ast.Constant) and repr(node.value) == of for tree in trees for node in ast.walk(tree))


METRICS: dict[str, Callable[[list[ast.Module], str], float]] = {
    "duplicates": _duplicates,
    "longest": lambda trees, of: max((sum(1 for _ in _statements(f)) for f in _functions(trees)), default=0),
    "complexity": lambda trees, of: max(map(_complexity, _functions(trees)), default=0),
    "nesting": lambda trees, of: max(map(_depth, _functions(trees)), default=0),
    "uses": _uses,
    "literals": _literals,
    "globals": lambda trees, of: sum(isinstance(node, ast.Global) for tree in trees for node in ast.walk(tree)),
}
