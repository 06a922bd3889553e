"""LegalBench's labelled rows (HazyResearch, licences by task): the label passes, other labels of the task do not."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from temper.core.task import Message, Task
from temper.core.trace import Segment, Trace
from temper.verifiers import exact
from temper.verifiers.grading import grade

DATA = Path(__file__).parents[3] / "shared" / "data"
OTHERS = 5  # answers of the same task that are tried on each row


def rows() -> Iterator[tuple[str, str, list[str]]]:
    """(task, the row's answer, other answers of the task)."""
    for path in sorted(DATA.glob("**/tasks/*/train.tsv")):
        with path.open(encoding="utf-8", newline="") as file:
            answers = [row["answer"] for row in csv.DictReader(file, delimiter="\t") if row.get("answer")]
        for answer in answers:
            others = sorted({other for other in answers if other.casefold().strip() != answer.casefold().strip()})
            yield path.parent.name, answer, others[:OTHERS]


@pytest.mark.outside
def test_labels_pass_and_other_labels_do_not() -> None:
    known = list(rows())
    if not known:
        pytest.skip("LegalBench is not there")
    verifier = exact.create()

    async def score(gold: str, answer: str) -> float:
        task = Task(id="t", domain="d", messages=(), reference={"answer": gold})
        said = Segment.given((Message("assistant", answer),), [])
        trace = Trace(id="x", task="t", domain="d", seed=0, segments=(said,))
        verdict = await grade(task, trace, {}, verifier)
        assert verdict.status == "graded", verdict
        return verdict.score

    async def every() -> None:
        for name, answer, others in known:
            assert await score(answer, answer) == 1, (name, answer)
            for other in others:
                assert await score(answer, other) == 0, (name, answer, other)

    asyncio.run(every())
    assert len(known) > 500
