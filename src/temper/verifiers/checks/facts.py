"""Values as documents state them: when two are the same, and whether a text states one. Standard library.

Kinds: text, number, amount (a number with its unit: money, a span of time, a dose), date, label. Numbers are exact:
"$100.00" is "$100" is "100 dollars", "1.5 million" is "1,500,000", "(12)" is -12 as in accounts, and 0.33 is not 1/3.
An amount without its unit is another amount.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from temper.verifiers.checks import units

SCALES = {
    "hundred": 100, "thousand": 10**3, "k": 10**3, "million": 10**6, "mn": 10**6, "billion": 10**9, "bn": 10**9,
    "trillion": 10**12,
}  # fmt: skip
_LONGEST = 60  # characters of a number
MONTHS = "january february march april may june july august september october november december".split()  # noqa: SIM905
_MONTH = "|".join(f"{month}|{month[:3]}" for month in MONTHS) + "|sept"
_DATES = [
    re.compile(r"(?<![0-9])(?P<y>[0-9]{4})-(?P<m>[0-9]{1,2})-(?P<d>[0-9]{1,2})(?![0-9])"),
    re.compile(rf"(?P<m>{_MONTH})\.?\s+(?P<d>[0-9]{{1,2}})(?:st|nd|rd|th)?,?\s+(?P<y>[0-9]{{4}})(?![0-9])", re.I),
    re.compile(
        rf"(?<![0-9])(?P<d>[0-9]{{1,2}})(?:st|nd|rd|th)?\s+(?:day\s+of\s+)?(?P<m>{_MONTH})\.?,?\s+(?P<y>[0-9]{{4}})(?![0-9])",
        re.I,
    ),
]
_AMOUNT = re.compile(
    r"""(?<![A-Za-z_])(?P<open>\()?(?P<sign>[-−])?(?P<before>(?:\$|€|£|USD|EUR|GBP)\s?)?(?P<inside>\()?
    (?P<number>(?<![0-9.,])(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?![0-9]|[.,][0-9]))
    (?P<close>\))?\s?(?P<scale>(?:thousand|million|billion|trillion|mn|bn|k)\b)?\s?
    (?P<after>%|(?:percent|per\scent)\b|[A-Za-zµ°€£$]+(?:(?:/|\sper\s)[A-Za-z]+)?(?:\^?[23²³])?)?""",
    re.X,
)


class Amount(NamedTuple):
    """`value` in base units; `dimension` as in `units`, ("%",) for percentages, () for a plain number."""

    value: Fraction
    dimension: tuple[Any, ...]
    span: tuple[int, int]


def same(kind: str, gold: str, given: Any) -> bool:
    """Whether an answer's value (plain JSON) is the gold value."""
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        return False
    text = given if isinstance(given, str) else f"{Decimal(repr(given)):f}"
    if kind in ("number", "amount"):
        wanted, found = amount(gold, words=True), amount(text, words=True)
        if wanted is None or found is None or wanted[:2] != found[:2]:
            return False
        return kind == "number" or wanted.dimension != () or _around(wanted, gold) == _around(found, text)
    if kind == "date":
        return dates(text) == dates(gold) != []
    return plain(text) == plain(gold)


def states(kind: str, gold: str, text: str) -> bool:
    """Whether a text states the value. A label is a judgement and stands in no text."""
    if kind in ("number", "amount"):
        wanted = _only_amount(gold)
        return wanted is not None and any(found[:2] == wanted[:2] for found in amounts(text))
    if kind == "date":
        return bool(set(dates(gold)) & set(dates(text)))
    return kind == "label" or re.search(rf"(?<!\w){re.escape(plain(gold))}(?!\w)", plain(text)) is not None


def amount(given: str | int | float, words: bool = False) -> Amount | None:
    """The amount that a value is, with nothing but a few words beside it if at all; None for anything else."""
    text = given if isinstance(given, str) else f"{Decimal(repr(given)):f}"
    found = _only_amount(text)
    return found if found and (words or not re.search(r"[A-Za-z]", _around(found, text))) else None


def plain(text: str) -> str:
    """Case, spacing, and punctuation that is no part of a number do not count."""
    text = unicodedata.normalize("NFC", text).casefold()
    return " ".join(re.sub(r"(?<![0-9])[.,]|[.,](?![0-9])|[;:!?\"“”'‘’()\[\]]", " ", text).split())


def dates(text: str) -> list[tuple[int, int, int]]:
    """(year, month, day) of each full date, in order; 03/04/2024 names no certain day and is none."""
    found = []
    for pattern in _DATES:
        for match in pattern.finditer(text):
            month = match["m"].lower()
            number = int(month) if month.isdigit() else 1 + [name[:3] for name in MONTHS].index(month[:3])
            found.append((match.start(), (int(match["y"]), number, int(match["d"]))))
    return [date for _, date in sorted(found)]


def amounts(text: str) -> Iterator[Amount]:
    """Each number in a text, with the unit that stands beside it."""
    for match in _AMOUNT.finditer(text):
        if len(match["number"]) > _LONGEST:
            continue
        before, after = (match["before"] or "").strip(), match["after"] or ""
        percent = after in ("%", "percent", "per cent")
        unit = None if percent else units.named(before or after) if before or after else None
        spelled = re.search(r"[a-z]\s?$", text[max(0, match.start() - 2) : match.start()])  # "thirty (30) days"
        accounts = (match["open"] or match["inside"]) and match["close"] and not spelled
        value = Fraction(match["number"].replace(",", "")) * SCALES.get(match["scale"] or "", 1)
        value *= (unit.factor if unit else 1) * (-1 if match["sign"] or accounts else 1)
        parts = ("after",) if percent or (unit and not before) else ("number", "scale", *["close"] * bool(accounts))
        end = max(match.end(part) for part in parts)
        yield Amount(value, ("%",) if percent else unit.dimension if unit else (), (match.start(), end))


def _only_amount(text: str) -> Amount | None:
    """The amount that a text is, with a few words about it at most: None for several numbers, or for none."""
    found = list(amounts(text))
    if len(found) != 1:
        return None
    start, end = found[0].span
    return found[0] if re.fullmatch(r"[\sA-Za-z()\-]{0,30}", text[:start] + text[end:]) else None


def _around(amount: Amount, text: str) -> str:
    """What stands beside a number, where that is no unit that we know: 3 tablets are not 3 bottles."""
    start, end = amount.span
    return plain(text[:start] + " " + text[end:])
