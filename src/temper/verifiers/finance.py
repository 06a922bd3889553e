"""A figure from a financial table: value, unit, scale, period, and the cells that it rests on (`checks.finance`).

Reference: {"rows": the table as texts, "program": "(C2 - B2) / B2 * 100", "unit": "%", "scale": "", "period": "2023",
"decimals": 1}. `table_scale` is what the table's numbers are in ("thousand"); `formulas` says which cells are sums of
others ({"B5": "sum(B2:B4)"}), so that both count as the same source. Without a program, "value" is the gold value and
the answer needs no program; a list holds values that are names or amounts with a sign, in any order. Components: value,
unit, period, program.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from temper.verifiers import written
from temper.verifiers.checks import finance

Config = written.Config


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    rows: list[list[str]] = []
    program: str = ""
    value: str | list[str] = ""
    unit: str = ""
    scale: str = ""
    period: str = ""
    decimals: int = 2
    table_scale: str = ""
    formulas: dict[str, str] = {}


def gold(reference: Reference) -> str:
    """The right answer as JSON. Raises ValueError or ZeroDivisionError when the reference gives none."""
    if isinstance(reference.value, list):
        if not all(text.strip() for text in reference.value) or not reference.value:
            raise ValueError("an empty value would pass by saying nothing")
        answer: dict[str, Any] = {"value": reference.value}
    else:
        shown = round(finance.gold_value(msgspec.to_builtins(reference)), reference.decimals)
        answer = {"value": float(shown) if reference.decimals else int(shown)}
    answer |= {name: getattr(reference, name) for name in ("unit", "scale", "period", "program")}
    return msgspec.json.encode({name: part for name, part in answer.items() if part != ""}).decode()


create = written.checked(
    __name__, Config, Reference, gold, lambda reference, task: "" if gold(reference) else "no answer",
    check="temper.verifiers.checks.finance:check",
)  # fmt: skip
