"""Both ends of the wire use the same words; the header of the helper is the one source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from temper.sandboxes import wire
from temper.sandboxes.sessions import _quoted

HEADER = (Path(__file__).parents[3] / "native" / "sandbox.h").read_text()


def test_kinds_of_frames_and_flags_are_those_of_the_header() -> None:
    letters = {name: ord(letter) for name, letter in re.findall(r"\b([A-Z]+) = '(\w)'", HEADER)}
    numbers = {name: int(number) for name, number in re.findall(r"^    ([A-Z]+) = (\d+),", HEADER, re.M)}
    assert {"EXEC", "WARM", "LANE", "INPUT", "SAID", "TURN", "SNAPSHOT"} <= letters.keys()
    assert {"FRESH", "FORKED", "STREAMED", "INTERACTIVE", "TERMINAL"} == numbers.keys()
    on_a_box = {name: letter for name, letter in letters.items() if name not in ("HELLO", "GONE")}
    assert len(set(on_a_box.values())) == len(on_a_box)
    known = letters | numbers
    assert {name: getattr(wire, name) for name in known if hasattr(wire, name)} == {
        name: value for name, value in known.items() if hasattr(wire, name)
    }


@pytest.mark.parametrize("text", ["a", "it's", "a\\nb", "tab\t\\", "two\nlines\r\n", '!x $y `z` "q"', "é\udcff", "\\'"])
def test_a_turn_is_one_word_on_one_line(text: str) -> None:
    """ANSI-C quoting as in the manual of bash; undone here by its rules for these four escapes."""
    quoted = _quoted(text)
    assert "\n" not in quoted
    assert quoted[:2] + quoted[-1] == "$''"
    escapes = {"\\\\": "\\", "\\'": "'", "\\n": "\n", "\\r": "\r"}
    assert re.sub(r"\\.", lambda found: escapes[found[0]], quoted[2:-1]) == text
