"""Final answers as text: find one, read its outer form, and compare it by exact rational arithmetic. Standard library.

Where the answer stands, first hit wins, and nothing else is looked at:
1. the last \\boxed{...}, and those that stand before it with nothing but "and" in between; a box within a box, or one
   that does not close, is no answer
2. what follows the last "####" on its line
3. what follows the last "answer is" or "answer:" up to the end of the sentence
4. a displayed formula that ends the text
5. the last line with a digit or a formula
The whole of 2, 3 and 5 when it is arithmetic or a list, else the last formula ($...$, \\(...\\)) or number in it, with
its unit; but what was marked (3) is taken by its word where it is no prose.

Form: "1, 2", "1 and 2", "{1, 2}", "1 \\pm 2" and a single "1" are sets (order and repetition do not count, but every
element must be there and no other); "(1, 2]" keeps its brackets and its order, and "1 < x <= 2" and "{x | x > 1}" are
read as intervals. Elements are `name = body` or a body, `exact \\approx rounded` where both are given.
Units are carried out (`checks.units`), and one that only one side gives is left out. A percent sign is a unit: 50%
equals 50% and also the plain numbers 50 and 1/2. Decimals are exact: 0.333 is not 1/3, though 0.\\overline{3} is. Where
a number is asked for, a calculation that was not carried out is no answer, be it 12+7 or 12/2; 2*10^3 is a number.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from temper.verifiers.checks import units
from temper.verifiers.checks.rationals import NUMBER, UnsureError, rational

_LINE = 2000  # characters of a line that are looked at
_MOST_BOXES = 20  # in a row
_FINISHED = re.compile(
    rf"[-+]?(?:(?:{NUMBER}\*)?10\^\{{?[-+]?[0-9]{{1,3}}\}}?|{NUMBER}(?:/([0-9]+)|[eE][-+]?[0-9]{{1,3}})?"
    r"|\\frac\{[-+]?[0-9,]+\}\{([-+]?[0-9,]+)\}|\([0-9]+\+[^()]*/[^()]*\))%?"
)
_IN_TEXT = re.compile(rf"(?<![\w.,])-?(?:[0-9]+,[0-9]+(?![0-9,.])|{NUMBER}(?:/[0-9]+)?)(?!\.?[0-9])")
_BEHIND = re.compile(r"\$?\s*(%|(?:percent(?:age)?|pct)\b)|\s*([A-Za-zµ€£$][A-Za-z²³/]*)")
_BOX = re.compile(r"\\boxed\s*")
_AND = re.compile(r"(?:[\s$,;.]|\\[()\[\]]|\\q?quad|\\text\{ *(?:and|or) *\}|\b(?:and|or)\b)*")
_QUANTITY = r"(?:[A-Z|:{}()]|\\(?:frac|angle|overline|triangle)|_\{?\w+\}?)+"  # AB, |AB|, \frac{AB}{CD}, V_1:V_2
_FUNCTION = r"[A-Za-z](?:_\{?\w+\}?|'*(?:\^\{-1\})?\([A-Za-z]\))?"  # x, a_{n}, f(x), f'(x), f^{-1}(x)
_NAME = re.compile(rf"\s*({_FUNCTION}|\\[a-z]+|{_QUANTITY})\s*(?:=(?!=)|\\in(?![a-z]))")
_CONDITION = re.compile(r"(?<![\\A-Za-z])(?:if|when|where|for|with)(?![A-Za-z])")
_PLAIN = re.compile(rf"-?{NUMBER}(?:/[0-9]+)?")
_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\s*\{?([0-9]+)\}?")
_DISPLAYED = re.compile(r"(?:\\\[((?:(?!\\\[).)*)\\\]|\$\$([^$]*)\$\$)[.\s]*$", re.S)
_FORMULA = re.compile(r"\\\((.+?)\\\)|\$\$(.+?)\$\$|(?<![\\$0-9])(?<![0-9] )\$(?!\$)([^$]+?)(?<!\\)\$(?![0-9$])")
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["rewrites"]
]


class Form(NamedTuple):
    """`brackets` is "" for a set. Elements are (name or "", body). `name`: whose interval it is."""

    brackets: str
    elements: list[tuple[str, str]]
    name: str = ""


def check(text: str, gold: str) -> tuple[str, str]:
    """("right" | "wrong" | "unsure" | "none", the answer as it was read)."""
    answer = extract(text)
    if not answer:
        return "none", ""
    expected, found = read(gold), read(answer)
    try:
        right = found == expected or alike(gold, answer, rational_equal)
    except UnsureError:
        return "unsure", answer
    return ("right" if right and (_carried_out(found) or not _carried_out(expected)) else "wrong"), answer


def extract(text: str) -> str:
    """The final answer, "" when there is none. See the top of this file."""
    if "\\boxed" in text:
        found = _boxes(text)
    elif "####" in text:
        found = _in_words(_plain(text.rpartition("####")[2].strip().partition("\n")[0]))
    elif marked := list(re.finditer(r"answer(?: is)?\s*:|answer is\b", text, re.I)):
        found = _plain(re.split(r"\n|\.(?:\s|$)", text[marked[-1].end() :].strip(), maxsplit=1)[0])
        prose = len(re.findall(r"(?<![\\{A-Za-z])[A-Za-z]{2,}", found)) > 2 or _FORMULA.search(found)
        found = _in_words(found[-_LINE:]) if prose else found
    elif displayed := _DISPLAYED.search(text[-_LINE:]):
        found = displayed[1] or displayed[2] or ""
    else:
        lines = (line for line in reversed(text.split("\n")) if re.search(r"[0-9$]|\\\(", line))
        found = _in_words(next(lines, "").strip()[-_LINE:])
    return re.sub(r"(?<!\.)[.,;]\s*$", "", found.strip())


def _boxes(text: str) -> str:
    """The last box, and those before it that only "and" stands between."""
    kept: list[str] = []
    percent = next_ = None
    for found in reversed(list(_BOX.finditer(text))[-_MOST_BOXES:]):
        inside = _braces(text[found.end() :])
        if inside is None or text[: found.start()].rstrip().endswith("\\boxed{"):
            break
        end = found.end() + len(inside) + 2
        if kept and not _AND.fullmatch(text[end:next_]):
            break
        percent = percent or _BEHIND.match(text, end)
        kept, next_ = [inside.strip(), *kept], found.start()
    return ", ".join(kept) + ("%" if percent and percent[1] and len(kept) == 1 else "")


def _in_words(line: str) -> str:
    """The line itself where it is arithmetic, else its last formula or number, with the unit behind it."""
    line = line.rstrip(".")
    try:
        for _, body in read(line).elements:
            rational(units.split(body)[0])
        return line
    except UnsureError:
        pass
    formulas = list(_FORMULA.finditer(line))
    start = formulas[-1].end() if formulas else 0
    for number in reversed(list(_IN_TEXT.finditer(line, start))):
        behind = _BEHIND.match(line, number.end())
        unit = behind[1] or (behind[2] if units.named(behind[2]) else "") if behind else ""
        if unit or not re.match(r"[A-Za-z_]", line[number.end() :]):
            money = re.search(r"[$€£]$", line[: number.start()].rstrip())
            return f"{money[0] if money else ''}{number[0].rstrip('.')} {unit}".strip()
    if not formulas:
        return ""
    percent = _BEHIND.match(line, start)
    return next(filter(None, formulas[-1].groups())).strip() + ("%" if percent and percent[1] else "")


def _carried_out(form: Form) -> bool:
    for _, body in form.elements:
        number = units.split(body.partition("\\approx")[0])[0].replace(" ", "")
        bare = number[1:-1] if number[:1] == "(" and closes(number) == len(number) else number
        found = _FINISHED.fullmatch(bare) or _FINISHED.fullmatch(number)
        if not found:
            return False
        if found[1] or found[2]:
            value, _ = rational(found[0])
            if value.denominator == 1:
                return False
    return True


def alike(gold: str, answer: str, equal: Callable[[str, str], bool]) -> bool:
    """Whether their forms are the same; two inequalities may also be so as they stand."""
    if same(read(gold), read(answer), equal):
        return True
    told = all(re.search(r"[<>≤≥]|\\[lg]eq?(?![a-z])", text) for text in (gold, answer))
    return told and same(read(gold, ranges=False), read(answer, ranges=False), equal)


def read(text: str, ranges: bool = True) -> Form:
    """`ranges`: inequalities of one variable are read as intervals."""
    if _PLAIN.fullmatch(text):
        return Form("", [("", text)])
    if "\\begin" not in text:  # where two backslashes end a row
        text = text.replace("\\\\", "\\")
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = _REPEATING.sub(_repeating, text).strip().rstrip(" .,;")
    text = _interval(text) if ranges else text
    if named := re.match(r"([A-Za-z])\s*\\in(?![a-z])\s*(?=[(\[\\])", text):
        text = text[named.end() :]
    if re.fullmatch(r"\\\{.*\\\}", text, re.S) or (text.startswith("{") and _braces(text) == text[1:-1]):
        inner, brackets = text.strip("\\")[1:-1].rstrip("\\"), ""
    elif text[:1] in ("(", "[") and closes(text) == len(text) and len(parts := _split(text[1:-1])) > 1:
        return Form(text[0] + text[-1], [_element(part) for part in parts], named[1] if named else "")
    else:
        inner, brackets = text, ""
    both = [part.replace("\\pm", sign) for part in _split(inner) for sign in ("+-" if "\\pm" in part else "+")]
    return Form(brackets, [_element(part) for part in both])


def same(gold: Form, answer: Form, equal: Callable[[str, str], bool]) -> bool:
    """Compare forms; `equal(gold body, answer body)` compares elements."""
    if gold.brackets != answer.brackets or (gold.name and answer.name and gold.name != answer.name):
        return False
    if gold.brackets:
        pairs = list(zip(gold.elements, answer.elements, strict=False))
        return len(gold.elements) == len(answer.elements) and all(_matches(g, a, gold, equal) for g, a in pairs)
    if not gold.elements or not answer.elements:
        return not gold.elements and not answer.elements
    if len(answer.elements) > 4 * len(gold.elements) + 4:
        return False
    if len(gold.elements) == 1 and len(answer.elements) == 2 and re.fullmatch(r"[^/]*\.[0-9]+", gold.elements[0][1]):
        whole, part = (body for _, body in answer.elements)  # a decimal comma
        part, _ = units.split(part)
        if re.fullmatch(r"[0-9]+", part) and re.fullmatch(r"[-+]?[0-9]+", whole):
            return equal(gold.elements[0][1], f"{whole}.{part}")
    hits = [[_matches(g, a, gold, equal) for a in answer.elements] for g in gold.elements]
    return all(any(row) for row in hits) and all(any(column) for column in zip(*hits, strict=True))


def rational_equal(gold: str, answer: str) -> bool:
    (g, g_percent), (a, a_percent) = rational(gold), rational(answer)
    if g_percent == a_percent:
        return g == a
    return g == a or (g / 100 == a if g_percent else a / 100 == g)


def _matches(g: tuple[str, str], a: tuple[str, str], gold: Form, equal: Callable[[str, str], bool]) -> bool:
    """Elements: a name that only one side gives may be left out, unless it says which of several values is meant."""
    if (g[0] and a[0] and g[0] != a[0]) or "=" in g[1] + a[1]:
        return equal("=".join(filter(None, g)), "=".join(filter(None, a)))
    if "\\approx" in g[1] + a[1]:
        return _rounded(g[1].split("\\approx"), a[1].split("\\approx"), gold, equal)
    if g[0] and not a[0] and len({name.partition("_")[0] for name, _ in gold.elements if name}) > 1:
        return False
    if g[1][:1] in ("(", "[") and a[1][:1] in ("(", "["):
        left, right = read(g[1]), read(a[1])
        if left.brackets and right.brackets:  # a pair among pairs
            return same(left, right, equal)
    pair = units.aligned(g[1], a[1])
    return pair is not None and equal(*pair)


def _element(text: str) -> tuple[str, str]:
    """`x = body`, `f(x) = body`; a chain of equations without a name in front stands for its last side."""
    front, about, _ = text.partition("\\approx")
    if about and (not front.strip() or _NAME.fullmatch(f"{front}=")):  # x is about 3
        text = text.replace("\\approx", "=", 1)
    name = _NAME.match(text)
    body = text[name.end() :] if name else text
    chain = name or not re.search(r"[A-Za-z]", body.partition("\\approx")[0])
    *_, last = _split(body, "=") or [""] if chain and not _CONDITION.search(body) else [body]
    return ("y" if name[1] == "f(x)" else name[1]) if name else "", last.strip()


def _rounded(gold: list[str], answer: list[str], whole: Form, equal: Callable[[str, str], bool]) -> bool:
    """`exact \\approx rounded`: where both sides give both, both have to be right; either may stand alone."""
    both = [("", part.strip()) for part in gold], [("", part.strip()) for part in answer]
    if len(gold) == len(answer):
        return all(_matches(g, a, whole, equal) for g, a in zip(*both, strict=True))
    if len(answer) == 1:
        return any(_matches(g, both[1][0], whole, equal) for g in both[0])
    return _matches(both[0][0], both[1][-1 if "." in gold[0] else 0], whole, equal)


def _repeating(found: re.Match[str]) -> str:
    """0.1\\overline{6} as a fraction."""
    first = found[1] + found[2]
    ninths = 10 ** len(found[2]) * (10 ** len(found[3]) - 1)
    value = Fraction(int(first + found[3]) - int(first or 0), ninths)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}" if value.denominator > 1 else str(value)


def _split(text: str, marks: str = ",;") -> list[str]:
    """Parts at these marks outside brackets; a comma that groups thousands is none."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        groups = char == "," and re.search(r"(?<![0-9])[0-9]{1,3}(?:,[0-9]{3})*$", text[max(0, at - 16) : at])
        if depth == 0 and char in marks and not (groups and re.match(r",[0-9]{3}(?![0-9])", text[at : at + 5])):
            parts.append(text[start:at])
            start = at + 1
    return [part for part in [*parts, text[start:]] if part.strip()]


_FLIPPED = {">": "<", "\\geq": "\\leq"}


def _interval(text: str) -> str:
    """`1 < x <= 2` as x \\in(1, 2], `x > 2` as x \\in(2, \\infty), and unions of such as unions of intervals."""
    parts = [_range(part.strip()) for part in text.split("\\cup ")]
    name = f"{parts[0][0]}\\in" if len(parts) == 1 and parts[0][0] else ""
    return name + "\\cup ".join(part for _, part in parts)


def _range(text: str) -> tuple[str, str]:
    """The variable, "" where none is compared with numbers, and its interval, or else the text."""
    words = re.split(r"\s*(<|>|\\[lg]eq(?![a-z]))\s*", text)
    if any(sign in _FLIPPED for sign in words[1::2]):
        words = [_FLIPPED.get(word, word) for word in reversed(words)]
    if len(words) == 3 and not all(re.search(r"(?<![\\A-Za-z])[A-Za-z]", word) for word in words[::2]):
        words = [*words, "<", "\\infty"] if re.search(r"[0-9]|\\", words[0]) else ["-\\infty", "<", *words]
    if len(words) != 5 or "=" in text or not re.fullmatch(r"[A-Za-z](?:\([a-z]\))?", words[2]):
        return "", text
    low, first, variable, second, high = words
    return variable[0], f"{'(' if first == '<' else '['}{low}, {high}{')' if second == '<' else ']'}"


def closes(text: str, opening: str = "([{", closing: str = ")]}") -> int:
    """Where the bracket that opens the text closes, brackets of intervals being of either kind; -1 if it does not."""
    depth = 0
    for at, char in enumerate(text):
        depth += (char in opening) - (char in closing)
        if depth == 0:
            return at + 1
    return -1


def _braces(text: str) -> str | None:
    """What stands in the braces that `text` begins with; None when they do not close. \\{ and \\} are none."""
    end = closes(re.sub(r"\\[{}]", "  ", text[:4000]), "{", "}")
    return text[1 : end - 1] if text.startswith("{") and end > 0 else None


def _plain(text: str) -> str:
    """Marked but not boxed."""
    return text.strip().rstrip(".").strip("*").strip()[:4000]
