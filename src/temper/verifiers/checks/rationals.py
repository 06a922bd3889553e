"""Arithmetic over rational numbers, plain or in LaTeX, computed exactly and within bounds. Standard library."""

from __future__ import annotations

import re
from fractions import Fraction
from math import factorial

NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_MOST = 200_000  # bits of a number that is computed exactly
_TOKENS = re.compile(rf"\s*({NUMBER}(?:[eE][+-]?[0-9]{{1,3}}(?![0-9]))?|\\frac|[-+*/^!(){{}}])")


class UnsureError(Exception):
    """Not rational arithmetic: `checks.symbolic` has to look."""


def rational(text: str) -> tuple[Fraction, bool]:
    """The exact value and whether it carries a percent sign. Raises UnsureError for anything but bounded arithmetic."""
    body = text.strip()
    percent = body.endswith("%")
    parser = _Parser(body.rstrip("%") if percent else body)
    try:
        value = parser.sum()
    except (ZeroDivisionError, RecursionError):
        raise UnsureError(text[:80]) from None
    if parser.at < len(parser.tokens):
        raise UnsureError(text[:80])
    return value, percent


class _Parser:
    """Recursive descent over + - * / ^ ! ( ) { } and \\frac; `^` binds tighter than a sign."""

    def __init__(self, text: str) -> None:
        if len(text) > 2000:
            raise UnsureError("too long")
        self.tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            found = _TOKENS.match(text, at)
            if not found:
                raise UnsureError(text[:80])
            self.tokens.append(found[1])
            at = found.end()
        self.at = 0

    def sum(self) -> Fraction:
        value = self.product()
        while (sign := self.take("+", "-")) is not None:
            value = self.bounded(value + self.product() if sign == "+" else value - self.product())
        return value

    def product(self) -> Fraction:
        value = self.signed()
        while (sign := self.take("*", "/")) is not None:
            value = self.bounded(value * self.signed() if sign == "*" else value / self.signed())
        return value

    def signed(self) -> Fraction:
        if (sign := self.take("+", "-")) is not None:
            return self.signed() if sign == "+" else -self.signed()
        base = self.postfix()
        if self.take("^") is None:
            return base
        power = self.signed()
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if power.denominator != 1 or size * abs(power) > _MOST:
            raise UnsureError("power")
        return base ** int(power)

    def postfix(self) -> Fraction:
        value = self.primary()
        while self.take("!") is not None:
            if value.denominator != 1 or not 0 <= value <= 5000:
                raise UnsureError("factorial")
            value = Fraction(factorial(int(value)))
        return value

    def primary(self) -> Fraction:
        if self.take("\\frac") is not None:
            return self.group("{") / self.group("{")
        token = self.tokens[self.at] if self.at < len(self.tokens) else ""
        if token in ("(", "{"):
            return self.group(token)
        if not token or token[0] not in "0123456789.":
            raise UnsureError(token)
        self.at += 1
        return Fraction(token.replace(",", ""))

    def group(self, bracket: str) -> Fraction:
        close = {"(": ")", "{": "}"}[bracket]
        if self.take(bracket) is None:
            raise UnsureError(f"expected {bracket}")
        value = self.sum()
        if self.take(close) is None:
            raise UnsureError(f"expected {close}")
        return value

    def take(self, *wanted: str) -> str | None:
        if self.at < len(self.tokens) and self.tokens[self.at] in wanted:
            self.at += 1
            return self.tokens[self.at - 1]
        return None

    @staticmethod
    def bounded(value: Fraction) -> Fraction:
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MOST:
            raise UnsureError("too large")
        return value
