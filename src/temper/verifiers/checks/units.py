"""Units of measure behind a number: known ones by exact factors, other words as names of what is counted.

"5 km" is "5000 m"; "5 apples" is 5 of something. A single letter is a unit only where it cannot be a variable: inside
\\text{...}, or when the other side carries a unit for certain. Temperatures are no factors of each other and stay
apart. Standard library only; what a number is, `checks.answers` knows.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

# base quantity: each unit with its factor and its names
_TABLE = {
    "length": """mm 1/1000 millimeter millimetre; cm 1/100 centimeter centimetre; dm 1/10 decimeter; m 1 meter metre;
        km 1000 kilometer kilometre; in 127/5000 inch inches; ft 381/1250 foot feet; yd 1143/1250 yard;
        mi 201168/125 mile""",
    "mass": """mcg 1/1000000000 µg ug microgram; mg 1/1000000 milligram; g 1/1000 gram; kg 1 kilogram; t 1000 tonne;
        oz 45359237/1600000000 ounce; lb 45359237/100000000 lbs pound""",
    "time": "ms 1/1000 millisecond; s 1 sec second; min 60 minute; h 3600 hr hour; day 86400; week 604800",
    "calendar": "month 1; quarter 3; year 12",
    "volume": "ml 1/1000000 mL milliliter millilitre; dl 1/10000 dL; l 1/1000 L liter litre",
    "angle": "deg 1 degree; rad 1 radian",
    "data": "kB 1000; MB 1000000; GB 1000000000",
    "celsius": "°C 1 celsius",
    "fahrenheit": "°F 1 fahrenheit",
    "usd": "USD 1 $ dollar; cent 1/100; ¢ 1/100",
    "eur": "EUR 1 € euro",
    "gbp": "GBP 1 £",
}
_RADIAN = {"rad", "radian", "radians"}
_WORDS = re.compile(r"(?:and|or|sin|cos|tan|cot|sec|csc|log|ln|exp|sqrt|frac|inf|infinity|infty|pi|mod|cdot|times)")
_SUFFIX = re.compile(
    r"""(?P<number>.*[0-9.)}]|.+(?=\\text\{))(?P<gap>\s*)(?P<mark>\\text\{)?\s*
    (?P<unit>[A-Za-zµ°¢€£$][A-Za-zµ°0-9\ ^²³/\-{}]*?)\s*\}?\s*(?P<power>\^\{?[23]\}?)?""",
    re.S | re.X,
)
_PREFIX = re.compile(r"(?P<sign>[-+]?)\s*(?P<unit>USD|EUR|GBP|€|£|\$)\s*(?P<number>[-+]?[0-9.].*)", re.S)
_ATOM = re.compile(r"([A-Za-zµ°¢€£$]+)(?:\^?\{?(-?[1-3²³])\}?)?")


class Unit(NamedTuple):
    """`dimension` is () for a word that is no unit we know; `sure`: it cannot be a variable."""

    factor: Fraction
    dimension: tuple[tuple[str, int], ...]
    sure: bool


def aligned(gold: str, answer: str) -> tuple[str, str] | None:
    """Both without their units and in the gold's; None when they measure different things.

    A unit that only one side gives is left out.
    """
    (g, gold_unit), (a, answer_unit) = split(gold), split(answer)
    if not any(unit and unit.sure for unit in (gold_unit, answer_unit)):
        return gold, answer
    if gold_unit is None or answer_unit is None:
        return g, a
    if gold_unit.dimension != answer_unit.dimension:
        return None
    ratio = answer_unit.factor / gold_unit.factor
    return g, a if ratio == 1 else f"({a})*({ratio})"


def split(text: str) -> tuple[str, Unit | None]:
    """The number's text and its unit; the whole text and None where there is none."""
    if found := _PREFIX.fullmatch(text.strip()):
        rest, behind = split(found["number"])
        unit = None if behind is not None else named(found["unit"])
        return (text, None) if unit is None else (found["sign"] + rest, unit)
    found = _SUFFIX.fullmatch(text.strip()) if len(text) < 200 else None
    if not found or re.fullmatch(r"[eE][0-9+\-]*", found["unit"]):
        return text, None
    words = found["unit"].strip() + (found["power"] or "")
    unit = named(words)
    if unit is not None:
        sure = bool(found["mark"]) or not re.fullmatch("[A-Za-z]", found["unit"])
        return found["number"], unit._replace(sure=sure)
    counted = re.fullmatch(r"[A-Za-z]{3,}(?:[ \-][A-Za-z]+)*", words) and not any(
        _WORDS.fullmatch(word) for word in words.split()
    )
    if (counted and found["gap"]) or found["mark"]:
        return found["number"], Unit(Fraction(1), (), True)
    return text, None


def named(text: str) -> Unit | None:
    """A product or quotient of known units: "km/h", "m^2", "miles per hour", "mg/dL"."""
    parts = re.split(r"\s*(?:/|\bper\b)\s*", re.sub(r"(?:square|sq\.?) (\w+)", r"\1^2", text.strip()))
    factor, dimension = Fraction(1), dict[str, int]()
    for n, part in enumerate(parts):
        for atom in part.split():
            found = _ATOM.fullmatch(atom)
            known = found and _KNOWN.get(found[1])
            if not found or not known:
                return None
            power = int((found[2] or "1").replace("²", "2").replace("³", "3")) * (-1 if n else 1)
            factor *= known[0] ** power
            for base, exponent in known[1]:
                dimension[base] = dimension.get(base, 0) + exponent * power
        if not part.strip():
            return None
    return Unit(factor, tuple(sorted((base, n) for base, n in dimension.items() if n)), True)


def _known() -> dict[str, tuple[Fraction, tuple[tuple[str, int], ...]]]:
    known = {}
    for base, line in _TABLE.items():
        dimension = (("length", 3),) if base == "volume" else ((base, 1),)
        for entry in line.split(";"):
            name, factor, *others = entry.split()
            for other in (name, *others):
                kind = (("radian", 1),) if other in _RADIAN else dimension
                known[other] = known[other.capitalize()] = (Fraction(factor), kind)
                if len(other) > 2 and other.isalpha():
                    known[other + "s"] = known[other.capitalize() + "s"] = known[other]
    for letter in "MGSHT":  # capitals mean something else, unlike L
        known.pop(letter, None)
    return known


_KNOWN = _known()
