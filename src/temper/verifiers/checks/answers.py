"""Final answers as text: find one, read its outer form, and compare it by exact rational arithmetic. Standard library.

Where the answer stands, first hit wins, and nothing else is looked at:
1. the last \\boxed{...}; a box within a box, or one that does not close, is no answer
2. what follows the last "####" on its line
3. what follows the last "answer is" or "answer:" up to the end of the sentence
4. the last line that is not empty: the whole of it when it is arithmetic or a list, else the last number in it

Form: "1, 2", "1 and 2", "{1, 2}" and a single "1" are sets (order and repetition do not count, but every element
must be there and no other); "(1, 2]" keeps its brackets and its order. Elements are `name = body` or a body.
A percent sign is a unit: 50% equals 50% and also the plain numbers 50 and 1/2. Decimals are exact: 0.333 is not 1/3.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from math import factorial
from typing import NamedTuple

_MOST = 200_000  # bits of a number that is computed exactly
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_TOKENS = re.compile(rf"\s*({_NUMBER}(?:[eE][+-]?[0-9]{{1,3}}(?![0-9]))?|\\frac|[-+*/^!(){{}}])")
_FINISHED = re.compile(
    rf"[-+]?(?:{_NUMBER}(?:/[0-9]+|[eE][+-]?[0-9]{{1,3}})?|\\frac\{{[0-9]+\}}\{{[0-9]+\}}|\([0-9]+\+[^()]*/[^()]*\))%?"
)
_QUANTITY = re.compile(rf"([-+]?\$?{_NUMBER}(?:/[0-9]+)?%?)(?: +[A-Za-z]{{3,}})+")
_MATH_WORDS = re.compile(r"\b(and|or|sin|cos|tan|log|exp|sqrt|frac|inf|infinity|pi)\b")
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        (r"\\(?:left|right|displaystyle|[!,;:> ])|\\?\$|\^\{?\\circ\}?|°|~", " "),
        (r"\\[dt]frac", r"\\frac"),
        (r"\\(?:cdot|times)(?![a-zA-Z])|[×·]", "*"),
        (r"\\div(?![a-zA-Z])|÷", "/"),
        ("[−–]", "-"),
        (r"\*\*", "^"),
        (r"\{,\}", ","),
        (r"\\%", "%"),
        (r"\\(?:text|mbox|mathrm)\{ *(and|or) *\}|\b(and|or)\b", ", "),
        (r"(?:\\ |\s)*\\(?:text|mbox|mathrm)\{[^{}]*\}\s*$", ""),
        (r"\\frac\s*([0-9])\s*([0-9])", r"\\frac{\1}{\2}"),
        (r"(?<![0-9.}])([0-9]+)\s*\\frac\{([0-9]+)\}\{([0-9]+)\}", r"(\1+\2/\3)"),
        (r"(?<![0-9.])([0-9]+) +([0-9]+)/([0-9]+)(?![0-9.])", r"(\1+\2/\3)"),
    ]
]


class UnsureError(Exception):
    """Not rational arithmetic: `checks.symbolic` has to look."""


class Form(NamedTuple):
    """`brackets` is "" for a set. Elements are (name or "", body)."""

    brackets: str
    elements: list[tuple[str, str]]


def check(text: str, gold: str) -> tuple[str, str]:
    """("right" | "wrong" | "unsure" | "none", the answer as it was read)."""
    answer = extract(text)
    if not answer:
        return "none", ""
    try:
        right = same(read(gold), read(answer), rational_equal)
        return ("right" if right and (_carried_out(answer) or not _carried_out(gold)) else "wrong"), answer
    except UnsureError:
        return "unsure", answer


def extract(text: str) -> str:
    """The final answer, "" when there is none. See the top of this file."""
    if "\\boxed" in text:
        inside = _braces(text[text.rindex("\\boxed") + len("\\boxed") :].lstrip())
        outer = text[: text.rindex("\\boxed")].rstrip().endswith("\\boxed{")
        return "" if inside is None or outer else inside.strip()
    if "####" in text:
        return _plain(text.rpartition("####")[2].strip().partition("\n")[0])
    marked = list(re.finditer(r"answer(?: is)?\s*:|answer is\b", text, re.I))
    if marked:
        return _plain(re.split(r"\n|\.(?:\s|$)", text[marked[-1].end() :].strip(), maxsplit=1)[0])
    lines = text.split("\n")
    line = next((line.strip() for line in reversed(lines) if line.strip()), "").rstrip(".")
    if len(line) > 2000:
        return ""
    try:
        for _, body in read(line).elements:
            rational(body)
    except UnsureError:
        numbers = re.findall(rf"(?<![\w.])-?{_NUMBER}(?:/[0-9]+)?%?(?!\w)", line)
        return numbers[-1].rstrip(".") if numbers else ""
    return line


def _carried_out(text: str) -> bool:
    """Numbers, not sums of numbers: where 19 is asked for, 12+7 is the question and no answer."""
    return all(_FINISHED.fullmatch(body.replace(" ", "")) for _, body in read(text).elements)


def read(text: str) -> Form:
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = text.strip()
    if re.fullmatch(r"\\\{.*\\\}", text, re.S) or (text.startswith("{") and _braces(text) == text[1:-1]):
        inner, brackets = text.strip("\\")[1:-1].rstrip("\\"), ""
    elif len(parts := _split(text[1:-1])) > 1 and text[0] in "([" and text[-1] in ")]":
        return Form(text[0] + text[-1], [_element(part) for part in parts])
    else:
        inner, brackets = text, ""
    return Form(brackets, [_element(part) for part in _split(inner)])


def same(gold: Form, answer: Form, equal: Callable[[str, str], bool]) -> bool:
    """Compare forms; `equal(gold body, answer body)` compares elements."""
    if gold.brackets != answer.brackets:
        return False
    if gold.brackets:
        pairs = list(zip(gold.elements, answer.elements, strict=False))
        return len(gold.elements) == len(answer.elements) and all(_matches(g, a, gold, equal) for g, a in pairs)
    if len(answer.elements) > 4 * len(gold.elements) + 4:
        return False
    hits = [[_matches(g, a, gold, equal) for a in answer.elements] for g in gold.elements]
    return all(any(row) for row in hits) and all(any(column) for column in zip(*hits, strict=True))


def rational_equal(gold: str, answer: str) -> bool:
    (g, g_percent), (a, a_percent) = rational(gold), rational(answer)
    if g_percent == a_percent:
        return g == a
    return g == a or (g / 100 == a if g_percent else a / 100 == g)


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


def _matches(g: tuple[str, str], a: tuple[str, str], gold: Form, equal: Callable[[str, str], bool]) -> bool:
    """Elements: a name that only one side gives may be left out, unless it says which of several values is meant."""
    if (g[0] and a[0] and g[0] != a[0]) or "=" in g[1] + a[1]:
        return equal("=".join(filter(None, g)), "=".join(filter(None, a)))
    if g[0] and not a[0] and len({name for name, _ in gold.elements}) > 1:
        return False
    return equal(g[1], a[1])


def _element(text: str) -> tuple[str, str]:
    """`x = body`, `f(x) = body`; a chain of equations without a name in front stands for its last side."""
    name = re.match(r"\s*([A-Za-z](?:_\w|\([A-Za-z]\))?)\s*(?:=|\\in(?![a-z]))", text)
    body = text[name.end() :] if name else text
    *_, last = body.split("=") if name or not re.search(r"[A-Za-z]", body) else [body]
    return (name[1] if name else ""), last.strip()


def _split(text: str) -> list[str]:
    """Parts at commas and semicolons outside brackets; a comma that groups thousands is none."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        groups = char == "," and re.search(r"(?<![0-9])[0-9]{1,3}(?:,[0-9]{3})*$", text[max(0, at - 16) : at])
        if depth == 0 and char in ",;" and not (groups and re.match(r",[0-9]{3}(?![0-9])", text[at : at + 5])):
            parts.append(text[start:at])
            start = at + 1
    return [part for part in [*parts, text[start:]] if part.strip()]


def _braces(text: str) -> str | None:
    """What stands in the braces that `text` begins with; None when they do not close."""
    depth = 0
    for at, char in enumerate(text[:4000]):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return text[1:at] if char == "}" else None
    return None


def _plain(text: str) -> str:
    """Marked but not boxed: `42 apples.` is 42."""
    text = text.strip().rstrip(".").strip("*").strip()
    quantity = _QUANTITY.fullmatch(text)
    return quantity[1] if quantity and not _MATH_WORDS.search(text) else text[:4000]
