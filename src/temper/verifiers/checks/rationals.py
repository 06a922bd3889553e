"""Arithmetic over rational numbers, plain or in LaTeX, computed exactly and within bounds. Standard library.

Python's own parser reads it, spelled in another way: numbers are names, `n!` is `n.factorial`, `{n}` is `[n]` and
`\\frac{n}{m}` is `frac[n][m]`. So `^` binds tighter than a sign. Nothing is run.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from math import factorial

NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_MOST = 200_000  # bits of a number that is computed exactly
_TOKENS = re.compile(rf"\s*(?:({NUMBER}(?:[eE][+-]?[0-9]{{1,3}}(?![0-9]))?)|(\\frac|[-+*/^!(){{}}]))")
_SPELLINGS = {"^": "**", "!": ".factorial", "{": "[", "}": "]", "\\frac": "frac"}
_OPERATIONS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


class UnsureError(Exception):
    """Not rational arithmetic: `checks.symbolic` has to look."""


def rational(text: str) -> tuple[Fraction, bool]:
    """The exact value and whether it carries a percent sign. Raises UnsureError for anything but bounded arithmetic."""
    body = text.strip().rstrip("%").rstrip()
    words: list[str] = []
    numbers: dict[str, Fraction] = {}
    at = 0
    while at < len(body):
        if not (found := _TOKENS.match(body, at)) or len(body) > 2000:
            raise UnsureError(text[:80])
        if found[1]:
            words.append(f"n{len(numbers)}")
            numbers[words[-1]] = Fraction(found[1].replace(",", ""))
        else:
            words.append(_SPELLINGS.get(found[2], found[2]))
        at = found.end()
    try:
        return _value(ast.parse(" ".join(words), mode="eval").body, numbers), text.rstrip().endswith("%")
    except (SyntaxError, ZeroDivisionError, RecursionError, MemoryError):
        raise UnsureError(text[:80]) from None


def _value(node: ast.expr, numbers: Mapping[str, Fraction]) -> Fraction:
    def value(inner: ast.expr) -> Fraction:
        return _value(inner, numbers)

    match node:
        case ast.Name(id=name) if name in numbers:
            return numbers[name]
        case ast.List(elts=[inner]):
            return value(inner)
        case ast.UnaryOp(op=ast.UAdd(), operand=inner):
            return value(inner)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -value(inner)
        case ast.Attribute(value=inner):
            if (n := value(inner)).denominator == 1 and 0 <= n <= 5000:
                return Fraction(factorial(int(n)))
        case ast.Subscript(value=ast.Subscript(value=ast.Name(id="frac"), slice=top), slice=bottom):
            return value(top) / value(bottom)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, power = value(left), value(right)
            if power.denominator == 1 and _bits(base) * abs(power) <= _MOST:
                return base ** int(power)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            if _bits(found := _OPERATIONS[type(op)](value(left), value(right))) <= _MOST:
                return found
    raise UnsureError(ast.dump(node)[:80])


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
