"""Quotes and their places in a document: the one idea behind every cited answer.

A span is a pair of character offsets [start, end). A quote counts only verbatim: at the offset that it cites, or,
without an offset, where it stands exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]


def locate(document: str, quote: str, at: int | None = None) -> Span | None:
    """Where the quote stands; None when it is altered, cited at the wrong place, or ambiguous without a place."""
    if not quote.strip():
        return None
    if at is None:
        at = document.find(quote)
        if at < 0 or document.find(quote, at + 1) >= 0:
            return None
    return (at, at + len(quote)) if at >= 0 and document.startswith(quote, at) else None


def overlap(a: Span, b: Span) -> float:
    """Characters that two spans share, over those that either has."""
    shared = min(a[1], b[1]) - max(a[0], b[0])
    return max(0, shared) / max(1, max(a[1], b[1]) - min(a[0], b[0])) if shared > 0 else 0.0


def without(document: str, spans: Sequence[Span]) -> str:
    """The document with these spans cut out."""
    kept, at = [], 0
    for start, end in sorted(spans):
        kept.append(document[at : max(at, start)])
        at = max(at, end)
    return "".join([*kept, document[at:]])


def moved(span: Span, cut: Sequence[Span]) -> Span | None:
    """Where a span of the document is in `without(document, cut)`; None when any of it was cut out."""
    if any(start < span[1] and span[0] < end for start, end in cut):
        return None
    merged, shift, last = sorted(cut), 0, 0
    for start, end in merged:
        if end <= span[0]:
            shift += max(0, end - max(start, last))
            last = max(last, end)
    return span[0] - shift, span[1] - shift
