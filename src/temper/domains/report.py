"""Short reports on sales and staff: given sections, figures that have to be worked out, and a source behind each.

Level 1: a summary with a total. Level 2: three sections with a total, a change in percent and a figure of a second source.
Level 3: a table with its total as well, and a ratio across the sources.
"""

# ruff: noqa: E501  (tables with one entry a line)

from __future__ import annotations

import random
import re
from fractions import Fraction
from typing import Any

from temper.core.task import Limits, Message, Task
from temper.domains.generated import Draft
from temper.domains.written import Answers, Written

NAME = "report"
_REGIONS = ("North", "South", "East", "West", "Centre", "Coast")
_GOODS = ("bicycles", "lamps", "chairs", "kettles", "tents", "radios", "boots", "clocks")
_FORM = (
    "Write a report in Markdown with the sections {sections} (## headings), at least {words} words in each. State {figures}. "
    "Cite the source behind each figure as [S1]; use no number that the sources do not give or that was not asked for."
)


def create(config: object = None) -> Written:
    return Written(NAME, "report", draw, lambda task: task.reference["example"], right, wrong, second)


def draw(rng: random.Random, level: int) -> Draft:
    regions = rng.sample(_REGIONS, {1: 2, 2: 3, 3: 4}[level])
    goods, year = rng.choice(_GOODS), rng.randint(2012, 2028)
    old, new = ([rng.randint(20, 900) for _ in regions] for _ in range(2))
    staff = [rng.randint(11, 60) for _ in regions]
    sources = {
        "S1": f"Sales of {goods} in {year - 1} and {year}: "
        + "; ".join(f"{region} ${a} and ${b}" for region, a, b in zip(regions, old, new, strict=True)) + ".",
        "S2": f"Staff in {year}: " + "; ".join(f"{region} {n}" for region, n in zip(regions, staff, strict=True)) + ".",
    }  # fmt: skip
    total, before, people = sum(new), sum(old), sum(staff)
    change = _decimals(Fraction(100 * (total - before), before), 1)
    each = _decimals(Fraction(total, people), 2)
    best = regions[new.index(max(new))]
    title = {1: ("Summary",), 2: ("Summary", "Sales", "Staff"), 3: ("Summary", "Sales", "Staff", "Outlook")}[level]
    figures = [_figure(f"total sales in {year}", f"${total}", "Summary", "S1")]
    summary = f"Sales of {goods} came to ${total} in {year} [S1]."
    bodies = {"Summary": summary}
    if level > 1:
        figures += [
            _figure(f"the change of total sales from {year - 1} in percent, one decimal", f"{change}%", "Sales", "S1"),
            _figure(f"the highest sales of a region in {year}", f"${max(new)}", "Sales", "S1"),
            _figure(f"the number of all staff in {year}", str(people), "Staff", "S2"),
        ]
        bodies["Sales"] = (
            f"Total sales changed by {change}% against the year before [S1]. The best region was {best} with ${max(new)} [S1]."
        )
        bodies["Staff"] = f"In all regions together, {people} people were employed [S2]."
    if level == 3:
        figures.append(
            _figure(f"sales in {year} for each member of staff, two decimals", f"${each}", "Outlook", "S1", "S2")
        )
        rows = "\n".join(f"| {region} | ${n} |" for region, n in zip(regions, new, strict=True))
        bodies["Sales"] += f"\n\n| Region | Sales [S1] |\n|---|---|\n{rows}\n| Total | ${total} |"
        bodies["Outlook"] = f"Each member of staff stood for sales of ${each} on average [S1][S2]."
    asked = "; ".join(f"in {f['section']}, {f['name']}" for f in figures)
    form = _FORM.format(sections=", ".join(title), words=5, figures=asked)
    form += " Show the sales of the regions and their total as a table." if level == 3 else ""
    prompt = "\n".join(f"[{name}] {text}" for name, text in sources.items()) + f"\n\n{form}"
    reference = {
        "sections": [{"title": name, "words": 5} for name in title],
        "example": "\n\n".join(f"## {name}\n{bodies[name]}" for name in title),
        "sources": sources,
        "figures": figures,
        "allowed": [f"${total}", f"${before}"],
    }

    def build(rng: random.Random) -> Task:
        tokens = 40 + 120 * level
        return Task(
            id="",
            domain=NAME,
            messages=(Message("user", prompt),),
            limits=Limits(turns=1, tokens=tokens, turn_tokens=tokens),
            reference=reference,
        )

    return Draft(f"{sorted(zip(old, new, strict=True))} {sorted(staff) if level > 1 else ''}", prompt, build)


def _figure(name: str, value: str, section: str, *sources: str) -> dict[str, Any]:
    return {"name": name, "value": value, "section": section, "sources": list(sources)}


def _decimals(value: Fraction, n: int) -> str:
    """Rounded half up, as people do."""
    scaled = abs(value) * 10**n
    whole = (2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator)
    return f"{'-' if value < 0 and whole else ''}{whole // 10**n}.{whole % 10**n:0{n}}"


def right(task: Task) -> Answers:
    example = task.reference["example"]
    first = task.reference["figures"][0]["value"]
    yield "other headings", example.replace("## ", "### ")
    yield "cents written out", _with(example, first, f"{first}.00")
    yield "in dollars", _with(example, first, f"{first[1:]} dollars")
    yield "a sentence more", f"{example}\nNothing else of note happened in these regions."
    if "changed by -" in example:
        yield "a fall in words", example.replace("changed by -", "fell by ")
    yield "bold", _with(example, first, f"**{first}**")


def _with(example: str, value: str, other: str) -> str:
    """Where the value is not the beginning of a longer number."""
    return re.sub(rf"{re.escape(value)}(?![0-9]|\.[0-9])", other, example)


def wrong(task: Task) -> Answers:
    example = task.reference["example"]
    for figure in task.reference["figures"]:
        number = re.search(r"[0-9]+(?=[^0-9]*$)", figure["value"])
        changed = figure["value"][: number.start()] + str(int(number[0]) + 1) + figure["value"][number.end() :]
        yield f"{figure['name']} is off", _with(example, figure["value"], changed)
    first = task.reference["figures"][0]["value"]
    yield "no citations", re.sub(r"\s*\[S[12]\]", "", example)
    yield "a source that is none", example.replace("[S1]", "[S3]")
    yield "the wrong source", example.replace("[S1]", "[S2]")
    yield "another unit", _with(example, first, f"€{first[1:]}")
    yield "a number from nowhere", f"{example} Next year it may be $98765."
    yield "a section less", "\n".join(line for line in example.split("\n") if not line.startswith("## Summary"))
    yield "a section more", f"{example}\n\n## Notes\nNothing was left out of this report."
    yield "headings alone", "\n".join(line for line in example.split("\n") if line.startswith("##"))


def second(task: Task, answer: str) -> bool | None:
    """Right where only words differ from the gold report, number by number and heading by heading; wrong without a figure."""
    marks = r"^#+ .*|\[\w+\]|[-$]?[0-9][0-9,.]*[0-9]%?|[0-9]"
    said, known = (re.findall(marks, text, re.M) for text in (answer, task.reference["example"]))
    if said == known and len(answer) >= len(task.reference["example"]):
        return True
    digits = re.sub(r"[^0-9 .]", "", answer.replace(",", ""))
    missing = [f for f in task.reference["figures"] if re.sub(r"[^0-9.]", "", f["value"]) not in digits]
    return False if missing else None
