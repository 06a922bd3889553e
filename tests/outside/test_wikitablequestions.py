"""WikiTableQuestions (Pasupat and Liang, CC BY-SA 4.0): its answers are right as they stand, and others are not."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import pytest

from temper.verifiers.tables import check, denoted, same

DATA = Path(__file__).parents[3] / "shared" / "data"
ESCAPES = {"\\p": "|", "\\n": "\n", "\\\\": "\\"}


def answers(path: Path) -> list[list[str]]:
    """The target values of a .tsv file, unescaped as its README says."""
    rows = csv.DictReader(path.read_text("utf-8").splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
    found = [row["targetValue"].split("|") for row in rows]
    return [[ESCAPES.get(item, item).replace("\\p", "|").replace("\\n", " ") for item in answer] for answer in found]


@pytest.mark.outside
def test_answers_are_right_in_any_order_and_others_are_wrong() -> None:
    files = sorted(DATA.glob("**/pristine-unseen-tables.tsv")) + sorted(DATA.glob("**/training.tsv"))
    if not files:
        pytest.skip("WikiTableQuestions is not there")
    judged = 0
    for gold, other in pairwise(answer for path in files for answer in answers(path)):
        if any("|" in item or "\n" in item for item in gold):
            continue  # these characters separate items here
        judged += 1
        assert check(" | ".join(gold), {"answer": gold}).right, gold
        assert check("Let me see.\n\nAnswer: " + " | ".join(gold[::-1]), {"answer": gold}).right, gold
        if len(gold) > 1:
            assert not check(" | ".join(gold[1:]), {"answer": gold}).right, gold
        assert not check(" | ".join([*gold, "Atlantis"]), {"answer": gold}).right, gold
        if len(gold) != len(other) or not all(same(*map(denoted, pair)) for pair in zip(gold, other, strict=True)):
            assert not check(" | ".join(other), {"answer": gold}).right or sorted(other) == sorted(gold), (gold, other)
    assert judged > 4000
