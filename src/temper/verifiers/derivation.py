"""A chain of reasoning from what is given to a goal: does every step follow from the steps that it cites?

Reference: {"given": ["2*x + 3 = 11"], "goal": "x = 4", "solution": the gold chain}, and where they occur, "integers"
and "propositions" by name. The answer is the chain, one step a line:

    1. 2*x + 3 = 11 [given]
    2. 2*x = 8 [from 1]
    3. x = 4 [from 2]

Statements are equations, inequalities and `and`, `or`, `not`, `->` over real numbers, integers and propositions. Right
is a chain of steps that are all ok and whose last one says the goal. A step cites at most `premises` others, so that a
leap from everything to the goal is a gap. A step is

- ok: z3 finds no case in which the cited steps hold and this one does not (equations with functions such as sin: both
  sides agree to 50 digits at random points, after the cited definitions `name = term` have been put in)
- gap: true in the light of all that stands before it, but not of what it cites
- wrong: does not follow, with the case that shows it; or cannot be read, or is too hard for z3 within its limit
- circular: cites itself or a later step, or repeats an earlier one
- unused: the last step does not rest on it

z3's limit is a count of its own operations, so that a verdict does not depend on the machine's load. Components: valid
(the share of steps before the first bad one), goal, and the number of gaps, circular and unused steps. The evidence
names the first bad step. Needs the extra `temper-rl[derivation]` (z3).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import isfinite
from typing import Any, NamedTuple

from msgspec import Struct

from temper.verifiers import written
from temper.verifiers.checks.forms import Found
from temper.verifiers.grading import Some, Text

_STEP = re.compile(
    r"\s*(\d{1,3})\s*[.):]\s+(.{1,300}?)\s*\[\s*(given|from(?: steps?)?\s+\d{1,3}(?:\s*(?:,|and)\s*\d{1,3})*)\s*\]\s*"
)
_MOST, _MOST_BAD = 100, 3  # steps; bad ones after which the rest is not looked at
_OPERATIONS = 3_000_000  # of z3, about a second
_COUNTED = {"gaps": "gap", "circular": "circular", "unused": "unused"}
_SPELLINGS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        ("[−–]", "-"),
        ("[×·]", "*"),
        ("≤|=<", "<="),
        ("≥", ">="),
        ("≠", "!="),
        (r"\^", "**"),
        (r"(?<![<>!=])=(?!=)", "=="),
        (r"(?<![A-Za-z_0-9.])([0-9]+(?:\.[0-9]+)?)\s*(?=[A-Za-z(])(?!\s*(?:and|or)\b)", r"\1*"),
    ]
]
_ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_COMPARISONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


class Config(written.Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 20.0


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    given: Some[str]
    goal: Text
    solution: Text
    integers: list[str] = []
    propositions: list[str] = []
    premises: int = 2


class UnreadableError(Exception):
    """A statement that is not in the language above."""


class Step(NamedTuple):
    label: int
    text: str
    cites: tuple[int, ...] | None  # None: given


def check(text: str, reference: dict[str, Any]) -> Found:
    """Runs in a worker; `reference` as plain data."""
    steps, problem = read(text)
    if problem:
        return Found(False, problem, {"valid": 0.0})
    language = Language(reference["propositions"], reference["integers"])
    labels: list[str] = []
    reasons: list[str] = []
    for n, step in enumerate(steps):
        label, reason = "unchecked", f"{_MOST_BAD} steps before it are bad"
        if sum(other != "ok" for other in labels) < _MOST_BAD:
            label, reason = _label(step, steps[:n], language, reference["given"], reference["premises"])
        labels.append(label)
        reasons.append(reason)
    used = _used(steps)
    for n, step in enumerate(steps):
        if labels[n] == "ok" and step.label not in used:
            labels[n], reasons[n] = "unused", "nothing rests on it"
    goal = _same(steps[-1].text, reference["goal"])
    bad = [n for n, label in enumerate(labels) if label != "ok"]
    first = next((n for n in bad if labels[n] != "unused"), bad[0] if bad else len(steps))
    why = "" if goal else f"the last step does not say {reference['goal']}"
    if first < len(steps):
        why = f"step {steps[first].label} ({steps[first].text}) is {labels[first]}: {reasons[first]}"
    counts = {name: float(labels.count(label)) for name, label in _COUNTED.items()}
    return Found(not why, why, {"valid": first / len(steps), "goal": float(goal), **counts})


def read(text: str) -> tuple[list[Step], str]:
    """The steps, or why there are none."""
    steps: list[Step] = []
    for line in filter(str.strip, text.split("\n")):
        found = _STEP.fullmatch(line)
        if not found:
            return [], f"{line[:80]!r} is no step: expected `N. statement [given]` or `N. statement [from N, N]`"
        label = int(found[1])
        if any(step.label == label for step in steps) or len(steps) == _MOST:
            return [], f"step {label} stands there twice, or there are more than {_MOST} steps"
        cites = None if found[3] == "given" else tuple(map(int, re.findall(r"\d+", found[3])))
        steps.append(Step(label, found[2], cites))
    return steps, "" if steps else "there are no steps"


def _label(step: Step, before: Sequence[Step], language: Language, given: list[str], premises: int) -> tuple[str, str]:
    known = {other.label: other.text for other in before}
    try:
        if step.cites is None:
            told = any(_same(step.text, other) for other in given)
            return ("ok", "") if told else ("wrong", "it was not given")
        if late := [label for label in step.cites if label not in known]:
            return "circular", f"it cites step {late[0]}, which does not stand before it"
        if again := [label for label, text in known.items() if _same(step.text, text)]:
            return "circular", f"it repeats step {again[0]}"
        if len(step.cites) > premises:
            return "gap", f"it cites {len(step.cites)} steps at once, at most {premises} are allowed"
        follows, counterexample = language.follows([known[label] for label in step.cites], step.text)
        if follows:
            return "ok", ""
        cited = ", ".join(map(str, step.cites))
        if language.follows([*known.values(), *given], step.text)[0]:
            return "gap", f"it needs more than what it cites ({cited})"
        return "wrong", f"it does not follow from {cited}{counterexample}"
    except UnreadableError as error:
        return "wrong", f"it cannot be read: {error}"


def _used(steps: Sequence[Step]) -> set[int]:
    """Labels of the steps that the last one rests on, itself included."""
    cites = {step.label: step.cites or () for step in steps}
    used, open_ = set[int](), [steps[-1].label]
    while open_:
        label = open_.pop()
        if label not in used and label in cites:
            used.add(label)
            open_ += cites[label]
    return used


class Language:
    """Statements as z3 formulas: every number is real, and an integer is a real of which that is said."""

    def __init__(self, propositions: list[str], integers: list[str]) -> None:
        self._propositions, self._integers = frozenset(propositions), integers

    def follows(self, premises: Sequence[str], statement: str) -> tuple[bool, str]:
        """Whether it follows, and a counterexample in words where z3 has one."""
        import z3

        trees = [_tree(text) for text in (*premises, statement)]
        if any(isinstance(node, ast.Call) for tree in trees for node in ast.walk(tree)):
            return _agrees(trees[:-1], trees[-1]), ""
        *known, claim = map(self._claim, trees)
        solver = z3.Solver()
        solver.set("rlimit", _OPERATIONS)
        solver.add(*known, z3.Not(claim), *(z3.IsInt(z3.Real(name)) for name in self._integers))
        outcome = solver.check()
        if outcome != z3.sat:
            return outcome == z3.unsat, ": it is too hard to check"
        model = solver.model()
        case = ", ".join(sorted(f"{name} = {model[name]}" for name in model.decls()))
        return False, f": consider {case[:200]}" if case else ""

    def _claim(self, node: ast.expr) -> Any:
        import z3

        match node:
            case ast.BoolOp(op=op, values=values):
                return (z3.And if isinstance(op, ast.And) else z3.Or)(*map(self._claim, values))
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return z3.Not(self._claim(inner))
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARISONS for op in ops):
                terms = [_term(side, z3.Real, lambda n: z3.RealVal(str(n))) for side in (left, *others)]
                pairs = zip(ops, terms, terms[1:], strict=False)
                return z3.And(*(_COMPARISONS[type(op)](a, b) for op, a, b in pairs))
            case ast.Name(id=name) if name in self._propositions:
                return z3.Bool(name)
            case ast.Tuple(elts=[premise, conclusion]):  # an implication, see `_tree`
                return z3.Implies(self._claim(premise), self._claim(conclusion))
        raise UnreadableError(f"{ast.unparse(node)[:80]!r} is no statement")


def _tree(text: str) -> ast.expr:
    """Python's syntax tree of a statement; `a -> b` becomes the pair (a, b)."""
    if len(text) > 300:
        raise UnreadableError("it is too long")
    premise, arrow, conclusion = text.partition("->")
    if arrow:
        return ast.Tuple([_tree(premise), _tree(conclusion)], ast.Load())
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise UnreadableError(f"{text.strip()[:80]!r} is no statement") from None


def _term(
    node: ast.expr,
    symbol: Callable[[str], Any],
    number: Callable[[Fraction], Any],
    functions: Mapping[str, Callable[[Any], Any]] = {},
) -> Any:
    """Arithmetic in whatever numbers and symbols are: z3's or sympy's."""

    def inner(other: ast.expr) -> Any:
        return _term(other, symbol, number, functions)

    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and isfinite(value):
            return number(Fraction(str(value)))
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -inner(operand)
        case ast.BinOp(op=ast.Pow(), left=base, right=ast.Constant(value=int(power))) if 0 < power < 7:
            result = factor = inner(base)
            for _ in range(power - 1):
                result = result * factor
            return result
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _ARITHMETIC:
            return _ARITHMETIC[type(op)](inner(left), inner(right))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in functions:
            return functions[name](inner(argument))
    raise UnreadableError(f"{ast.unparse(node)[:80]!r} is no term")


def _agrees(premises: Sequence[ast.expr], claim: ast.expr) -> bool:
    """An equation between terms with functions, by numbers, once the premises of the form `name = term` are put in."""
    import sympy

    from temper.verifiers.checks import symbolic

    functions = {name: getattr(sympy, name) for name in ("sin", "cos", "tan", "exp", "log", "sqrt")}

    def sides(tree: ast.expr) -> tuple[Any, Any]:
        match tree:
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
                rational = lambda n: sympy.Rational(n.numerator, n.denominator)  # noqa: E731
                return tuple(_term(side, sympy.Symbol, rational, functions) for side in (left, right))
        raise UnreadableError(f"with functions, {ast.unparse(tree)[:80]!r} has to be an equation")

    definitions = dict(pair for pair in map(sides, premises) if pair[0].is_Symbol)
    left, right = (side.subs(definitions) for side in sides(claim))
    return symbolic.agree(left, right) is True


def _same(text: str, other: str) -> bool:
    """The same statement up to spelling, and to which side of an equation comes first."""
    try:
        return _canonical(_tree(text)) == _canonical(_tree(other))
    except UnreadableError:
        return False


def _canonical(node: ast.expr) -> Any:
    match node:
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return sorted((ast.dump(left), ast.dump(right)))
        case ast.BoolOp(op=op, values=values):
            return [type(op).__name__, sorted(map(str, map(_canonical, values)))]
    return ast.dump(node)


create = written.checked(
    __name__, Config, Reference, lambda reference: reference.solution, libraries=("z3-solver", "sympy"),
    extra="derivation",
)  # fmt: skip
