"""Game levels: known answers are graded as they are known, and no wrong one is a right one in disguise."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import msgspec
import pytest

from temper.core.task import ToolCall
from temper.domains.game_levels import Editor, GameLevels
from temper.verifiers.checks.scenes import check
from temper.verifiers.scene import Reference


@pytest.mark.parametrize("level", [1, 2, 3])
def test_known_answers_get_their_grades(level):
    domain, kinds = GameLevels(), Counter()
    for task in itertools.islice(domain.tasks("train", level), 12):
        reference = msgspec.convert(task.reference, Reference)
        rules = msgspec.to_builtins(reference.rules)
        project = {path: text.encode() for path, text in reference.project.items()}
        for case in domain.cases(task):
            right, why, _ = check("level.tscn", case.artifacts["level.tscn"], project, reference.sizes, rules)
            assert right == case.right, (case.why, why, case.artifacts)
            kinds[case.right] += 1
    assert kinds[True] >= 12 * 7
    assert kinds[False] >= 12 * 15


def test_the_editor_says_what_keeps_a_level_from_loading():
    editor = Editor()

    def write(text: str) -> str:
        return asyncio.run(editor.call(ToolCall("write", {"text": text})))

    assert write("[gd_scene format=3]\n") == "error: a scene without nodes"
    assert write("[gd_scene format=3]\nfoo").startswith("error: line 2")
    assert write('[gd_scene format=3]\n[node name="A" type="Node"]') == "ok"
    assert editor.artifacts()["level.tscn"].startswith(b"[gd_scene")
