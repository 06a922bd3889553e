"""CUAD's contracts (The Atticus Project, CC BY 4.0): spans are found at their offsets, altered quotes are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from temper.verifiers.documents import locate

DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.outside
def test_every_offset_is_found_and_every_altered_quote_refused() -> None:
    files = sorted(DATA.glob("**/[Cc][Uu][Aa][Dd]*.json"))
    if not files:
        pytest.skip("CUAD is not there")
    spans = 0
    for path in files:
        for contract in json.loads(path.read_text("utf-8"))["data"]:
            for paragraph in contract["paragraphs"]:
                for answer in (answer for question in paragraph["qas"] for answer in question["answers"]):
                    text, at, context = answer["text"], answer["answer_start"], paragraph["context"]
                    assert locate(context, text, at) == (at, at + len(text))
                    middle = len(text) // 2
                    altered = text[:middle] + ("x" if text[middle] != "x" else "y") + text[middle + 1 :]
                    assert locate(context, altered, at) is None
                    assert locate(context, text, at + 1) is None or len(set(text)) == 1
                    spans += 1
    assert spans > 100
