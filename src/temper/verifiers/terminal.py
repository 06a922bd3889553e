"""Work in a shell is right when it left the expected files behind, and nothing else (`checks.terminal`).

Reference: {"files": {path: entry}, "free": [patterns], "scripts": {path: [run]}}. `files` is the whole expected tree,
`free` names paths that may be there in any form. The environment delivers `tree.json`, which a program of ours lists
(`checks.tree`). A script of `scripts` is run as `sh PATH` in fresh boxes, over the task's own files and the delivered
ones, and has to print what the run says (`verifiers.output`), which never enters the box.

Components: files, scripts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.blame import FaultError
from temper.core.protocols import SandboxBackend
from temper.core.task import Task
from temper.core.trace import Trace
from temper.verifiers import boxes, output
from temper.verifiers.grading import Grader, Judgement, delivered, fingerprint
from temper.verifiers.pool import Pool

_CHECK, _TREE = "temper.verifiers.checks.terminal", "temper.verifiers.checks.tree"


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 5.0  # of the comparison, and of each run of a script


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    files: dict[str, dict[str, Any]]
    free: list[str] = []
    scripts: dict[str, list[output.Run]] = {}
    commands: list[str] = []  # of the solution
    written: dict[str, str] = {}  # scripts of the solution by path


def create(config: Config | None, pool: Pool, sandboxes: SandboxBackend) -> Grader:
    settings = config or Config()
    running = output.Config(seconds=settings.seconds, command=("sh",))

    async def judge(task: Task, trace: Trace, artifacts: Mapping[str, bytes], reference: Reference) -> Judgement:
        if not reference.files:
            raise FaultError("reference-missing", "verifiers.terminal", "expected the files that should be there")
        tree = delivered(artifacts, "tree.json")
        rules = (reference.files, reference.free)
        share, whys = await pool.judge(
            f"{_CHECK}:check", (tree, *rules), (b"{}", *rules), lambda found: bool(found), settings.seconds
        )
        components = {"files": share}
        if reference.scripts and not whys:
            left = {path: json.loads(tree)[path].get("text") for path in reference.files}
            texts = {path: text.encode("utf-8", "replace") for path, text in left.items() if isinstance(text, str)}
            spec = boxes.with_files(task.sandbox, texts)
            runs = [(path, run) for path, several in reference.scripts.items() for run in several]
            found = await asyncio.gather(*(output.why_not(sandboxes, running, spec, *run) for run in runs))
            components["scripts"] = found.count("") / len(found)
            whys = [why for why in found if why]
        return Judgement(float(not whys), "; ".join(whys[:3]), components)

    parts = (__name__, output.__name__, boxes.__name__, _CHECK, _TREE)
    return Grader("terminal", fingerprint(settings, *parts), Reference, judge)


def listing() -> str:
    """The program that lists the working directory as `tree.json`."""
    return boxes.program(_TREE)


def tree_of(entries: Mapping[str, Mapping[str, Any]]) -> bytes:
    """A `tree.json` as the listing would give it, of files by path."""
    return msgspec.json.encode({path: {"kind": "file", "mode": "644", **entry} for path, entry in entries.items()})
