"""Periods of accounts as people write them, and whether two of them may be the same. Standard library.

"2023", "FY23", "Q3 2023", "3Q23", "third quarter of 2023", "H1 2023", "June 2023", "June 30, 2023", "three months
ended June 30, 2023", "January 1 to June 30, 2023". A year alone is twelve months and a month alone that month; a day
alone ends a period of any length. Two periods are the same unless both name something in which they differ. Quarters
and halves are counted from January where only one side numbers them: a company's year may begin in any month.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from temper.verifiers.checks import facts

_NUMBERS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "eleven": 11, "twelve": 12, "thirteen": 13, "twenty-six": 26, "thirty-nine": 39, "fifty-two": 52, "fifty-three": 53,
}  # fmt: skip
_ORDINALS = {"first": 1, "1st": 1, "second": 2, "2nd": 2, "third": 3, "3rd": 3, "fourth": 4, "4th": 4}
_YEAR = re.compile(r"(?<![0-9])((?:19|20)[0-9]{2})(?![0-9])")
_SHORT_YEAR = re.compile(r"(?:fy|[qh]|')\s*([0-9]{2})(?![0-9])")
_PART = re.compile(
    rf"\b(?P<nth>{'|'.join(_ORDINALS)})[\s-](?:fiscal[\s-])?(?P<word>quarter|half)\b"
    r"|(?<![a-z])(?P<before>[qh])\s?(?P<n>[1-4])(?![0-9])|(?<![0-9])(?P<m>[1-4])\s?(?P<after>[qh])(?![a-z])"
)
_SPAN = re.compile(rf"\b({'|'.join(_NUMBERS)}|[0-9]{{1,2}})[\s-]*(month|week)|\b(3|6|9|12)m(?![a-z])")
_TO_DATE = re.compile(r"\bytd|year[\s-]to[\s-]date")
_MONTH = re.compile(rf"\b({'|'.join(f'{m}|{m[:3]}' for m in facts.MONTHS)}|sept)\b\.?(?:\s+([0-9]{{1,2}})\b)?")
_LENGTHS = (("quarter", 3), ("half", 6), ("year", 12), ("annual", 12), ("fy", 12))
_MONTH_ENDS = 28  # a period that begins on this day or later begins with the next month

_Day = tuple[int, int | None]  # a month, and the day of it where that is named


class Period(NamedTuple):
    """`year`: the whole text where it names none. `months`: how long. `part`: which quarter or half. `end`: a month."""

    year: str
    months: int | None = None
    part: int | None = None
    end: int | None = None
    day: int | None = None


def read(text: str) -> Period:
    folded, dates = text.casefold(), facts.dates(text)
    year, short = _YEAR.search(folded), _SHORT_YEAR.search(folded)
    named = year[1] if year else f"20{short[1]}" if short else folded.strip()
    days: Sequence[_Day] = [(_month(m[1]), int(m[2]) if m[2] else None) for m in _MONTH.finditer(folded)]
    if len(dates) >= max(1, len(days)):
        named, days = str(dates[-1][0]), [(month, day) for _, month, day in dates]
    part = _PART.search(folded)
    which = (_ORDINALS.get(part["nth"]) or int(part["n"] or part["m"])) if part else None
    end, day = days[-1] if days else (None, None)
    return Period(named, _length(folded, part, days, bool(year or short)), which, end, day)


def same(a: Period, b: Period) -> bool:
    """What one side does not name agrees with everything, but for the year."""
    agree = (a.months, b.months), (a.part, b.part), (_end(a, b), _end(b, a)), (a.day, b.day)
    return a.year == b.year and all(None in pair or pair[0] == pair[1] for pair in agree)


def _end(period: Period, other: Period) -> int | None:
    """The last month; that of a numbered part only for comparison with a side that numbers none."""
    if period.end or not period.part or not period.months or other.part:
        return period.end
    return period.part * period.months


def _length(folded: str, part: re.Match[str] | None, days: Sequence[_Day], year: bool) -> int | None:
    """In months."""
    if span := _SPAN.search(folded):
        if span[3]:
            return int(span[3])
        count = _NUMBERS.get(span[1]) or int(span[1])
        return count if span[2] == "month" else round(count * 12 / 52)
    if part:
        return {"q": 3, "h": 6}[(part["word"] or part["before"] or part["after"])[0]]
    if _TO_DATE.search(folded):
        return None
    if named := next((months for word, months in _LENGTHS if word in folded), None):
        return named
    if len(days) > 1:
        (first, day), (last, _) = days[0], days[-1]
        return (last - first) % 12 + (day is None or day < _MONTH_ENDS) or 12
    if days:
        return None if days[0][1] else 1
    return 12 if year else None


def _month(name: str) -> int:
    return 1 + [month[:3] for month in facts.MONTHS].index(name[:3])
