"""The answer to a question about a table: values, or a list of them, by what they denote, however people write them.

Reference: {"answer": ["3.5 km", "Ann"]}. Several items are a multiset, and every one of them has to be there and no
other. Read is what follows the last "answer:", else the last line; items are separated by "|", ";", line ends or
commas. Every item denotes one thing, the first that fits:

- a date: "June 3, 1990", "3 June 1990", "1990-06-03", "June 1990"; days and months have to be the same or both absent
- a number with or without a unit: "1,234", "$5.2 million", "45 %", "seven", "3.5 km". Known units of one kind are
  converted; a unit that only one side has does not count, except "%" and scale words, which change the number
- words: without capitals, accents, quotes, footnote marks, a final full stop and "the " in front

What stands in round brackets at the end of an expected item may be left out.

A year alone is a number. Whole numbers and decimals are exact: 0.333 is not 1/3.
"""

# ruff: noqa: SIM905  (words in one string)

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import Any

from msgspec import Struct

from temper.verifiers import written
from temper.verifiers.checks import facts, units
from temper.verifiers.checks.forms import Found
from temper.verifiers.grading import Some, Text

Config = written.Config
_TAIL = 8 << 10  # characters of an answer's end that are looked at
_DIGITS = 1000  # of a number
_MONTHS = {name: n for n, month in enumerate(facts.MONTHS, 1) for name in (month, month[:3])} | {"sept": 9}
_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_DENIALS = {"not", "no", "nor", "or", "and", "but", "than", "to", "without", "wrong", "false"}
_DETAILS = re.compile(r"(?<=\S)(?:\s+\([^()]*\))+\s*$")
_NUMBER = re.compile(
    r"([-+]?)\s*([$€£]?)\s*([-+]?)([0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?![0-9,./:])\s*(.*)"
)
_DATES = (
    re.compile(r"(?P<m>[a-z]+)\.? (?P<d>[0-9]{1,2})(?:st|nd|rd|th)?,? (?P<y>[0-9]{4})"),
    re.compile(r"(?P<d>[0-9]{1,2})(?:st|nd|rd|th)?\.? (?:of )?(?P<m>[a-z]+)\.?,? (?P<y>[0-9]{4})"),
    re.compile(r"(?P<m>[a-z]+)\.?,? (?P<y>[0-9]{4})"),
    re.compile(r"(?P<m>[a-z]+)\.? (?P<d>[0-9]{1,2})(?:st|nd|rd|th)?"),
    re.compile(r"(?P<d>[0-9]{1,2})(?:st|nd|rd|th)? (?:of )?(?P<m>[a-z]+)\.?"),
    re.compile(r"(?P<y>[0-9]{4})-(?P<m>[0-9]{2})(?:-(?P<d>[0-9]{2}))?"),
)


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    answer: Some[Text]


def check(text: str, reference: dict[str, Any]) -> Found:
    """Runs in a worker: right, why not, no components."""
    gold, answer = reference["answer"], extract(text)
    if not answer:
        return Found(False, "found no answer", {})
    for items in readings(answer, len(gold)):
        if len(items) == len(gold) and _matched(items, gold):
            return Found(True, "", {})
    return Found(False, f"read the answer as {answer[:80]!r}, which is not right", {})


def extract(text: str) -> str:
    text = text[-_TAIL:]
    lowered = text.lower()
    if "answer:" in lowered:
        return text[lowered.rindex("answer:") + len("answer:") :].strip().strip("*").strip()
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "")


def readings(answer: str, n: int) -> list[list[str]]:
    """The ways to read it as n items."""
    if n == 1:
        return [[answer]]
    found = [re.split(separator, answer) for separator in (r"\|", ";", r"\n", r",\s+and\s+|,\s+|\s+and\s+", ",")]
    return [[item.strip().lstrip("-*•").strip() for item in items if item.strip()] for items in found]


def _matched(items: list[str], gold: list[str]) -> bool:
    rest = [{denoted(item), denoted(_DETAILS.sub("", item))} for item in gold]
    for item in map(denoted, items):
        partner = next((n for n, values in enumerate(rest) if any(same(value, item) for value in values)), None)
        if partner is None:
            return False
        del rest[partner]
    return not rest


def same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether two things that `denoted` gave are one."""
    if a[0] != b[0] or a[0] != "number":
        return a == b
    if a[2] and b[2]:
        (kind, factor), (other, scale) = _unit(a[2]), _unit(b[2])
        return kind == other and a[1] * factor == b[1] * scale
    return a[1] == b[1] and "%" not in (_unit(a[2])[0], _unit(b[2])[0])


def denoted(text: str) -> tuple[Any, ...]:
    """("date", year, month, day), ("number", Fraction, unit) or ("words", text)."""
    words = _normal(text)
    for pattern in _DATES:
        if (found := pattern.fullmatch(words)) and (date := _date(found.groupdict())):
            return date
    if words in _WORDS:
        return "number", Fraction(_WORDS.index(words)), ""
    if (found := _NUMBER.fullmatch(words)) and (number := _number(*found.groups())):
        return number
    return "words", words


def _date(parts: dict[str, str | None]) -> tuple[Any, ...] | None:
    name = parts.get("m") or ""
    month = int(name) if name.isdigit() else _MONTHS.get(name)
    day = int(parts["d"]) if parts.get("d") else None
    if not month or month > 12 or (day is not None and not 1 <= day <= 31):
        return None
    return "date", int(parts["y"]) if parts.get("y") else None, month, day


def _number(sign: str, currency: str, inner: str, digits: str, rest: str) -> tuple[Any, ...] | None:
    if len(digits) > _DIGITS:
        return None
    value = Fraction(digits.replace(",", "")) * (-1 if "-" in (sign, inner) else 1)
    words = rest.rstrip(".").split()
    while words and words[0] in facts.SCALES:
        value *= facts.SCALES[words.pop(0)]
    unit = " ".join(words)
    if len(words) > 2 or _DENIALS & set(words) or not re.fullmatch(r"[a-z%$€£° /²³]*", unit) or (currency and unit):
        return None
    return "number", value, currency or unit


def _unit(unit: str) -> tuple[Any, Fraction]:
    """(kind, factor); a unit that we do not know is a kind of its own, in the singular."""
    if unit in ("%", "percent", "per cent"):
        return "%", Fraction(1)
    known = units.named(unit)
    singular = unit.removesuffix("s") if len(unit) > 2 else unit
    return (known.dimension, known.factor) if known else (singular, Fraction(1))


def _normal(text: str) -> str:
    text = unicodedata.normalize("NFKD", re.sub("[‐‑‒–—−]", "-", text))
    text = "".join(c for c in text if not unicodedata.combining(c)).casefold()
    text = re.sub(r"\[\w{1,3}\]|[*_`\"“”†‡]", "", re.sub("[‘’´]", "'", text))
    text = " ".join(text.split()).strip(" '")
    text = text[:-1].rstrip() if text.endswith(".") and not text.endswith("..") else text
    return text.removeprefix("the ")


create = written.checked(__name__, Config, Reference, lambda reference: " | ".join(reference.answer))
