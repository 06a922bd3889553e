"""The table of open and shut doors by backend: results of several runs in one JSON file, and a page made from it."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import FAMILIES, Result

MARKS = {"shut": "shut", "excused": "**open**", "open": "**OPEN**", "skipped": "–"}
HEAD = """# Open and shut doors

What the [abuse suite](../../tests/contract/sandbox/__init__.py) found, made by `temper check sandbox NAME --save
docs/results/sandbox-doors.json`. A door is *shut* when the attack failed and an onlooker outside saw nothing, *open*
where the backend reports the limit behind it as not hard (the reason is below), *OPEN* where that is a defect, and –
where it could not be tried. For `fidelity` and `blame`, shut means: honest programs work, and ends are told rightly.
"""


def save(path: Path, name: str, results: Sequence[Result]) -> None:
    """Adds a column, in place of an older one of the same backend and user."""
    table: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    doors = {result.case: [result.door, result.why] for result in results}
    column = f"{name}, {'plain user' if os.geteuid() else 'root'}"
    table[column] = {"kernel": platform.release().partition("-")[0], "doors": doors}
    path.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n", "utf-8")
    path.with_suffix(".md").write_text(page(table), "utf-8")


def page(table: dict[str, Any]) -> str:
    columns = sorted(table)
    lines = [HEAD, "| shut of tried | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for family in FAMILIES:
        lines.append(f"| {family} | " + " | ".join(_share(table[c]["doors"], family) for c in columns) + " |")
    names = sorted(
        {name for c in columns for name, (door, _) in table[c]["doors"].items() if door in ("open", "excused")}
    )
    lines += ["", "## Doors that are open somewhere", "", "| door | " + " | ".join(columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for name in names:
        marks = [MARKS[table[c]["doors"].get(name, ("skipped", ""))[0]] for c in columns]
        lines.append(f"| {name} | " + " | ".join(marks) + " |")
    for c in columns:
        reasons = [f"- {name}: {why}" for name, (door, why) in table[c]["doors"].items() if door in ("open", "excused")]
        untried = [f"{name} ({why})" for name, (door, why) in table[c]["doors"].items() if door == "skipped"]
        lines += ["", f"## {c} (Linux {table[c]['kernel']})", "", *(reasons or ["No door is open."])]
        lines += ["", "Not tried: " + ", ".join(untried) + "."] if untried else []
    return "\n".join(lines) + "\n"


def _share(doors: dict[str, list[str]], family: str) -> str:
    found = Counter(door for name, (door, _) in doors.items() if name.startswith(f"{family}/"))
    return f"{found['shut']} of {found.total() - found['skipped']}"
