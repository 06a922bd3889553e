"""Answers that are not rational arithmetic: parsed by math-verify's parser, compared by numbers first.

Two expressions are equal when they agree to 50 digits at every rational point where both are real, at least three of
them, negative ones included; constants, when they agree to 50 digits. math-verify's own comparison (0.9.0) decides only
where there are no numbers to compare (matrices, inequalities): it is known to accept 1-1/e for 1+1/e and to refuse
√(1/n) for 1/√n. Equations are equal when one is a constant multiple of the other. No time limits: the pool kills.
"""

from __future__ import annotations

import logging
import random
import re
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify

from temper.verifiers.checks import answers

logging.getLogger("math_verify").setLevel(logging.CRITICAL)

_DIGITS = 60
_FUNCTIONS = "sqrt|sin|cos|tan|cot|sec|csc|log|ln|exp|arcsin|arccos|arctan|sinh|cosh|tanh|pi|infty"
_LATEX = LatexExtractionConfig(  # units are ours: theirs read 5m, with a variable m, as 5
    normalization_config=NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True)
)
_POINTS = 10


def check(answer: str, gold: str) -> bool:
    return answers.same(answers.read(gold), answers.read(answer), equal)


def equal(gold: str, answer: str) -> bool:
    if gold == answer:
        return True
    try:
        return answers.rational_equal(gold, answer)
    except answers.UnsureError:
        pass
    if (left := read(gold)) is None or (right := read(answer)) is None:
        return False
    if str(left) == str(right):  # printed in one order, whatever the order of their parts
        return True
    if isinstance(left, sympy.Eq) and isinstance(right, sympy.Eq):
        plain = all(isinstance(side, sympy.Expr) and not side.is_Matrix for side in (*left.args, *right.args))
        if plain and (multiple := _proportional(left.lhs - left.rhs, right.lhs - right.rhs)) is not None:
            return multiple
        return bool(verify([left], [right], strict=True, timeout_seconds=None))
    if isinstance(left, sympy.Expr) != isinstance(right, sympy.Expr):
        return False
    if isinstance(left, sympy.Expr):
        if left.is_infinite or right.is_infinite:
            return bool(left == right)
        if (agreed := agree(left, right)) is not None:
            return agreed
    elif isinstance(left, sympy.Basic) and type(left) is not type(right) and not _ordered(left, right):
        return False
    return bool(verify([left], [right], strict=True, timeout_seconds=None))


def read(text: str) -> Any:
    """A sympy object, or None. Words are no product of their letters."""
    text = re.sub(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])", r"\\\1 ", text)
    text = re.sub(r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}", text)
    if re.search(r"(?<![\\A-Za-z])[A-Za-z]{4,}", re.sub(r"\\[a-z]+\{[^{}]*\}", "", text)) or "$" in text:
        return None
    found = parse(f"${text}$", extraction_config=[_LATEX], parsing_timeout=None)
    if not found or isinstance(found[0], str) or found[0] in (sympy.zoo, sympy.nan):
        return None
    if not isinstance(found[0], sympy.Basic):
        return found[0]
    written = {number: sympy.Rational(str(number)) for number in found[0].atoms(sympy.Float)}
    return found[0].xreplace(written)  # decimals as the fractions that they are written as


def agree(left: sympy.Expr, right: sympy.Expr) -> bool | None:
    """None when fewer points than needed gave real numbers on both sides."""
    pairs = _values(left, right)
    needed = 3 if left.free_symbols | right.free_symbols else 1
    if any(not _near(a, b) for a, b in pairs):
        return False
    return True if len(pairs) >= needed else None


def _proportional(left: sympy.Expr, right: sympy.Expr) -> bool | None:
    """None when there are fewer than three points to compare."""
    pairs = _values(left, right)
    if len(pairs) < 3:
        return None
    if any((a == 0) != (b == 0) for a, b in pairs):
        return False
    ratios = [a / b for a, b in pairs if b != 0]
    return len(ratios) >= 3 and all(_near(ratio, ratios[0]) for ratio in ratios)


def _values(left: sympy.Expr, right: sympy.Expr) -> list[tuple[Any, Any]]:
    """Both sides at the same points, where both are real numbers."""
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    rng = random.Random(0)
    points = []
    for n in range(_POINTS if symbols else 1):
        sign = -1 if n % 3 == 2 else 1
        points.append({symbol: sign * sympy.Rational(rng.randint(1, 999), rng.randint(101, 499)) for symbol in symbols})
    pairs = ((_real(left, point), _real(right, point)) for point in points)
    return [(a, b) for a, b in pairs if a is not None and b is not None]


def _real(expression: sympy.Expr, point: dict[Any, Any]) -> Any:
    try:
        value = expression.subs(point).doit().evalf(_DIGITS)
    except Exception:  # sympy raises anything on odd input; what it cannot compute has no value
        return None
    return value if value.is_Float or value.is_Rational else None


def _near(a: Any, b: Any) -> bool:
    return bool(abs(a - b) <= sympy.Float("1e-50", _DIGITS) * max(abs(a), abs(b)))


def _ordered(left: Any, right: Any) -> bool:
    """Inequalities may be written either way round."""
    kinds = (sympy.core.relational.Relational, sympy.logic.boolalg.Boolean)
    return isinstance(left, kinds) and isinstance(right, kinds)
