"""A report in sections, and its three forms: text for a terminal, Markdown, and one HTML page without external parts.

What a section says comes from the record of a run, where reasons quote what a model wrote: every string is shown
without control characters, and in the page escaped, under a policy that lets nothing run and nothing load.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from msgspec import Struct, field

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT, _EDGE = 640, 130, 8
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>%s</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #22282f; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h2 { margin-top: 2.2rem; border-bottom: 1px solid #d9dde2 }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; padding: .2rem .9rem .2rem 0; overflow-wrap: anywhere }
th { border-bottom: 1px solid #d9dde2; font-weight: 600 }
figure { margin: 1rem 0 } figcaption { font-size: 14px } svg { max-width: 100%%; background: #f6f7f8 }
</style></head><body>
<h1>%s</h1>
"""


class Section(Struct, frozen=True, kw_only=True):
    """`rows`: a table, its head first. `curves`: by name, points of one axis across, such as steps."""

    title: str
    lines: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    curves: dict[str, Points] = field(default_factory=dict)


def text(sections: Iterable[Section]) -> str:
    parts: list[str] = []
    for section in sections:
        rows = [[plain(cell) for cell in row] for row in section.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        parts.append("\n".join([section.title, *(f"  {line}" for line in [*map(plain, section.lines), *table])]))
    return "\n\n".join(parts)


def section(one: Section) -> str:
    """In Markdown."""
    rows = [[plain(cell).replace("|", "\\|") for cell in row] for row in one.rows]
    return "\n\n".join([f"## {one.title}", *map(plain, one.lines), *([table(rows)] if rows else [])])


def table(rows: Sequence[Sequence[str]]) -> str:
    """In Markdown; the first row is the head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def page(title: str, sections: Iterable[Section]) -> str:
    """The whole document."""
    return _HEAD % (_safe(title), _safe(title)) + "\n".join(map(_html, sections)) + "\n</body></html>\n"


def plain(words: str) -> str:
    """One line without control characters."""
    return repr(words)[1:-1]


def _safe(words: str) -> str:
    return escape(plain(words))


def _html(section: Section) -> str:
    parts = [f"<h2>{_safe(section.title)}</h2>", *(f"<p>{_safe(line)}</p>" for line in section.lines)]
    if section.rows:
        rows = ["".join(f"<td>{_safe(cell)}</td>" for cell in row) for row in section.rows]
        rows[0] = rows[0].replace("td>", "th>")
        parts.append("<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>")
    parts += [_figure(name, points) for name, points in section.curves.items()]
    return "\n".join(parts)


def _figure(name: str, points: Points) -> str:
    """A line over its axis, with the ends of both said below it."""
    xs, ys = zip(*points, strict=True)
    across, up = (max(xs) - min(xs)) or 1, (max(ys) - min(ys)) or 1
    drawn = " ".join(
        f"{_EDGE + (_WIDTH - 2 * _EDGE) * (x - min(xs)) / across:.1f},"
        f"{_HEIGHT - _EDGE - (_HEIGHT - 2 * _EDGE) * (y - min(ys)) / up:.1f}"
        for x, y in points
    )
    line = f'<polyline fill="none" stroke="#0072b2" stroke-width="2" points="{drawn}"/>'
    said = f"{name}: {min(ys):.4g} to {max(ys):.4g}, last {ys[-1]:.4g}; step {min(xs):g} to {max(xs):g}"
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img">{line}</svg>'
        f"<figcaption>{_safe(said)}</figcaption></figure>"
    )
