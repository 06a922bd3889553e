"""Trees of files: what is missing, changed or left over is told; scripts are run on input that they have not seen."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import zipfile

import pytest

from temper.sandboxes import local
from temper.verifiers import terminal

FILES = {"a.txt": {"text": "1\n"}, "d/run.sh": {"text": "echo 1\n", "mode": "755"}, "last": {"to": "a.txt"}}
TREE = {**FILES, "d": {"kind": "dir"}, "last": {"kind": "link", "to": "a.txt"}}


@pytest.fixture(scope="module")
def backend(loop):
    backend = local.create()
    yield backend
    asyncio.run_coroutine_threadsafe(backend.close(), loop).result()


@pytest.fixture
def grade(judged, pool, backend):
    def run(tree, reference):
        tree = tree if isinstance(tree, bytes) else terminal.tree_of(tree)
        return judged(
            terminal.create(None, pool, backend), reference, "", {"tree.json": tree}, artifacts=("tree.json",)
        )

    return run


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"a.txt": {"text": "1"}}, ""),
        ({"a.txt": {"text": "2\n"}}, "a.txt has other content"),
        ({"a.txt": {"kind": "link", "to": "/etc/passwd"}}, "a.txt is a link, expected a file"),
        ({"a.txt": {"base64": "/w=="}}, "a.txt has other content"),
        ({"d/run.sh": {"text": "echo 1\n"}}, "d/run.sh has mode 644, expected 755"),
        ({"last": {"kind": "link", "to": "b.txt"}}, "last leads elsewhere"),
        ({"b.txt": {"text": ""}}, "b.txt should not be there"),
        ({"e": {"kind": "dir"}}, "e should not be there"),
        ({"x.log": {"text": "anything"}}, ""),
    ],
)
def test_one_thing_amiss(grade, change, why):
    verdict = grade(TREE | change, {"files": FILES, "free": ["*.log"]})
    assert (verdict.status, verdict.score) == ("graded", float(not why))
    assert why in (verdict.evidence[0].text if why else "")


def test_archives_are_known_by_what_they_hold(grade):
    def zipped(**files):
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        return {"base64": base64.b64encode(held.getvalue()).decode()}

    reference = {"files": {"p.zip": {"archive": {"a": "1", "b": "2"}}}}
    assert grade({"p.zip": zipped(b="2", a="1")}, reference).score == 1.0
    locked = bytearray(base64.b64decode(zipped(a="1", b="2")["base64"]))
    for head, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.index(head) + flags] |= 1  # says that it is encrypted
    lists = (zipped(a="1"), zipped(a="1", b="3"), {"text": "PK"}, {"base64": "H4sI"}, {"base64": "?"})
    for wrong in (*lists, {"base64": base64.b64encode(locked).decode()}):
        verdict = grade({"p.zip": wrong}, reference)
        assert (verdict.status, verdict.score) == ("graded", 0.0)


def test_scripts_are_run_on_hidden_input(grade):
    reference = {"files": {"s.sh": {}}, "scripts": {"s.sh": [{"stdin": "2\n5\n", "stdout": "7"}, {"stdout": "0"}]}}
    assert grade({"s.sh": {"text": "awk '{s+=$1}END{print s+0}'"}}, reference).score == 1.0
    special = grade({"s.sh": {"text": "echo 7"}}, reference)
    assert special.components == {"files": 1.0, "scripts": 0.5}
    assert grade({"s.sh": {"text": "while :; do :; done"}}, reference).why == "deadline"


def test_trees_out_of_form(grade):
    odd = json.dumps({"\udcff": {"kind": "file", "text": "\udcff"}}).encode()
    for tree in (odd, b"", b"[]", b"{", b'{"a.txt": 1}', b"\xff", b"[" * 90_000):
        verdict = grade(tree, {"files": FILES})
        assert (verdict.status, verdict.score) == ("graded", 0.0)
