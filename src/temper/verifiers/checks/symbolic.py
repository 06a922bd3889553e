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
_STRICT = (sympy.StrictGreaterThan, sympy.StrictLessThan)
_INEQUALITIES = (*_STRICT, sympy.GreaterThan, sympy.LessThan)


def check(answer: str, gold: str) -> bool:
    return answers.alike(gold, answer, equal)


def equal(gold: str, answer: str) -> bool:
    if _spelled(gold) == _spelled(answer):
        return True
    try:
        return answers.rational_equal(gold, answer)
    except answers.UnsureError:
        pass
    if (left := read(gold)) is None or (right := read(answer)) is None:
        return False
    sides = gold.split("="), answer.split("=")
    unknown = any(isinstance(side, sympy.Eq) and side.free_symbols for side in (left, right))
    if len(sides[0]) == len(sides[1]) > 1 and not unknown:  # they hold or do not, and are compared side by side
        return all(map(equal, *sides))
    if isinstance(left, sympy.MatrixBase) and isinstance(right, sympy.MatrixBase):
        return left.shape == right.shape and all(agree(a, b) or a == b for a, b in zip(left, right, strict=True))
    if str(left) == str(right):  # printed in one order, whatever the order of their parts
        return True
    if isinstance(left, sympy.Eq) and isinstance(right, sympy.Eq):
        plain = all(isinstance(side, sympy.Expr) and not side.is_Matrix for side in (*left.args, *right.args))
        if plain and (ratio := _ratio(*(_numerator(side.lhs - side.rhs) for side in (left, right)))) is not None:
            return ratio != 0
        return len(sides[0]) == len(sides[1]) and all(map(equal, *sides))
    if isinstance(left, _INEQUALITIES) and isinstance(right, _INEQUALITIES):
        if isinstance(left, _STRICT) != isinstance(right, _STRICT):
            return False
        if ((ratio := _ratio(left.gts - left.lts, right.gts - right.lts)) or 0) > 0:
            return True
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


def _spelled(text: str) -> str:
    """Without spaces around signs, and words without capitals."""
    text = re.sub(r"\s*([^\w\s])\s*", r"\1", text.strip())
    return text.casefold() if re.search(r"(?<![\\A-Za-z])[A-Za-z]{4}|^(?:yes|no)$", text, re.I) else text


def read(text: str) -> Any:
    """A sympy object, or None. Words are no product of their letters, and i is the imaginary unit."""
    text = re.sub(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?![A-Za-z])", r"\\\1 ", text)
    text = _braced(text)
    if re.search(r"(?<![\\A-Za-z])[A-Za-z]{4,}", re.sub(r"\\[a-z]+\{[^{}]*\}", "", text)) or "$" in text:
        return None
    found = parse(f"${text}$", extraction_config=[_LATEX], parsing_timeout=None)
    if not found or isinstance(found[0], str) or found[0] in (sympy.zoo, sympy.nan):
        return None
    if not isinstance(found[0], sympy.Basic | sympy.MatrixBase):
        return found[0]
    meant = {number: sympy.Rational(str(number)) for number in found[0].atoms(sympy.Float)}  # decimals are exact
    for symbol in found[0].free_symbols:  # one for each name, whatever the parser assumes of them
        meant[symbol] = sympy.I if symbol.name == "i" else sympy.Symbol(symbol.name, real=True)
    return found[0].xreplace(meant)


def _braced(text: str) -> str:
    """`sqrt(...)` and `^(...)` with braces."""
    at = 0
    while found := re.compile(r"(?:\\sqrt|\^)\s*\(").search(text, at):
        at, end = found.end(), answers.closes(text[found.end() - 1 :]) + found.end() - 1
        if end >= at:
            text = f"{text[: at - 1]}{{{text[at : end - 1]}}}{text[end:]}"
    return text


def agree(left: sympy.Expr, right: sympy.Expr) -> bool | None:
    """None when fewer points than needed gave numbers on both sides: real ones, unless one of them is told with i."""
    pairs = _values(left, right)
    needed = 3 if left.free_symbols | right.free_symbols else 1
    if any(not _near(a, b) for a, b in pairs):
        return False
    return True if len(pairs) >= needed else None


def _ratio(left: sympy.Expr, right: sympy.Expr) -> Any:
    """Of which constant multiple the left is of the right, 0 where of none; None with too few points to compare."""
    pairs = _values(left, right)
    if len(pairs) < 3:
        return None
    if any((a == 0) != (b == 0) for a, b in pairs):
        return 0
    ratios = [a / b for a, b in pairs if b != 0]
    return ratios[0] if len(ratios) >= 3 and all(_near(ratio, ratios[0]) for ratio in ratios) else 0


def _numerator(side: sympy.Expr) -> sympy.Expr:
    return sympy.fraction(sympy.together(side))[0]


def _values(left: sympy.Expr, right: sympy.Expr) -> list[tuple[Any, Any]]:
    """Both sides at the same points, where both are real numbers."""
    whole = left.has(sympy.I) or right.has(sympy.I)
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    rng = random.Random(0)
    found: list[tuple[Any, Any]] = []
    for most in (999, 99):  # the latter within -1 to 1, where that is all that is defined
        for n in range(_POINTS if symbols else 1):
            sign = -1 if n % 3 == 2 else 1
            point = {x: sign * sympy.Rational(rng.randint(1, most), rng.randint(101, 499)) for x in symbols}
            pair = _number(left, point, whole), _number(right, point, whole)
            found += [pair] if None not in pair else []
        if len(found) >= 3:
            break
    return found


def _number(expression: sympy.Expr, point: dict[Any, Any], whole: bool) -> Any:
    """Its value, if that is a real number or, for `whole`, a complex one."""
    try:
        value = expression.subs(point).doit().evalf(_DIGITS)
    except Exception:  # sympy raises anything on odd input; what it cannot compute has no value
        return None
    parts = value.as_real_imag() if whole else (value,)
    return value if all(part.is_Float or part.is_Rational for part in parts) else None


def _near(a: Any, b: Any) -> bool:
    sizes = [sympy.re(abs(value).evalf(_DIGITS)) for value in (a - b, a, b)]
    return bool(sizes[0] <= sympy.Float("1e-50", _DIGITS) * max(sizes[1:]))


def _ordered(left: Any, right: Any) -> bool:
    """Inequalities may be written either way round."""
    kinds = (sympy.core.relational.Relational, sympy.logic.boolalg.Boolean)
    return isinstance(left, kinds) and isinstance(right, kinds)
