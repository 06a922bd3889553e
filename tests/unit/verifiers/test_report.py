"""Reports against their sources, with one thing wrong at a time."""

from __future__ import annotations

import pytest

from temper.verifiers import report

REFERENCE = {
    "sections": [{"title": "Summary", "words": 3}, {"title": "Findings", "words": 5}],
    "sources": {"S1": "North sold for $120 in 2023, after $150.", "S2": "South | 80 USD"},
    "figures": [
        {"name": "total", "value": "$200", "section": "Summary", "sources": ["S1", "S2"]},
        {"name": "change", "value": "-20%", "section": "Findings", "sources": ["S1"]},
    ],
    "allowed": ["60%"],
    "example": """## Summary
Sales came to $200. [S1][S2] All is well.

## Findings
| Region | Sales in 2023 |
|---|---|
| North | $120 |
| South | $80 |
| Total | $200 |

North sold for $120 in 2023 [S1], which is 60% of all sales. That is a fall by 20% [S1].
""",
}
GOLD = REFERENCE["example"]
CHANGES = [
    # what is replaced by what, the component that falls (none: still right)
    ("", "", None),
    ("## ", "#### ", None),
    ("$200. [S1][S2]", "200 dollars. [S2]", None),
    ("a fall by 20%", "a change by -20%", None),
    ("a fall by 20%", "a rise by 20%", "figures"),
    ("came to $200.", "came to $210.", "figures"),
    (" [S1][S2]", "", "figures"),
    ("came to $200", "came to a lot", "figures"),
    ("| South | $80 |", "| South | $85 |", "numbers"),
    ("| Total | $200 |", "| Total | $120 |", "numbers"),
    ("All is well.", "Next year will bring $300.", "numbers"),
    ("2023 [S1]", "2023 [S2]", "citations"),
    ("2023 [S1]", "2023 [S7]", "citations"),
    ("for $120 in 2023", "for 120 EUR in 2023", "units"),
    ("## Findings", "## Results", "sections"),
    ("## Summary", "Summary", "sections"),
    ("Sales came to $200. [S1][S2] All is well.", "$200 [S1][S2]", "sections"),
    ("Sales came to $200. [S1][S2] All", "Sales came in. <!-- They were $200. [S1][S2] --> All", "figures"),
    ("All is well.", "All is well. <!-- to be read again -->", None),
]


@pytest.mark.parametrize(("old", "new", "falls"), CHANGES)
def test_one_change(judged, pool, old, new, falls):
    verdict = judged(report.create(None, pool), REFERENCE, GOLD.replace(old, new) if old else GOLD)
    assert (verdict.status, verdict.score) == ("graded", falls is None), verdict.evidence
    assert falls is None or verdict.components[falls] == 0


def test_sections_in_another_order_are_other_sections(judged, pool):
    head, _, tail = GOLD.partition("## Findings")
    assert judged(report.create(None, pool), REFERENCE, f"## Findings{tail}\n{head}").components["sections"] == 0


def test_a_declared_file_is_the_report(judged, pool):
    verifier = report.create(None, pool)
    done = judged(verifier, REFERENCE, "done", {"report.md": GOLD.encode()}, artifacts=("report.md",))
    missing = judged(verifier, REFERENCE, GOLD, {}, artifacts=("report.md",))
    assert (done.score, missing.why, missing.score) == (1, "artifact-missing", 0)
