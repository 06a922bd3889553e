"""Terminal work: files are to be searched, sorted, renamed, packed, protected or written with shell commands.

Level 1: one command. Level 2: a pipeline, an archive, many files at once. Level 3: two of these and a small script,
which is run on hidden input. Graded is the tree of files that was left behind, collateral damage included, however it
came about. Each command has a shell of its own in the working directory; a message without a call ends the episode.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

from temper.core.protocols import Environment, Resources
from temper.core.task import Case, Limits, Message, SandboxSpec, Split, Task, ToolCall
from temper.domains.generated import LEVELS, Draft, stream
from temper.domains.terminal.filters import filled
from temper.domains.terminal.jobs import SCRIPTS, Job, draw_jobs, filled_keys, tarred
from temper.rollouts.environments import ToolEnvironment
from temper.rollouts.toolsets import ToolError, Toolset, tool
from temper.verifiers import terminal as verifier
from temper.verifiers.audit.bench import Bench

TREE = "tree.json"


def create(config: object = None) -> Terminal:
    return Terminal()


class Terminal:
    """`core.protocols.Domain`."""

    name = "terminal"
    levels = LEVELS

    def tasks(self, split: Split, level: int, seed: int = 0) -> Iterator[Task]:
        return stream(self.name, draw, split, level, seed)

    def environment(self, task: Task, resources: Resources) -> Environment:
        return ShellEnvironment(task, Shell(), resources)

    def verifier(self, task: Task) -> tuple[str, Mapping[str, Any]]:
        return "terminal", {}

    def gold(self, task: Task) -> tuple[Message, ...]:
        calls = tuple(ToolCall("sh", {"cmd": command}) for command in task.reference["commands"])
        return Message("assistant", calls=calls), Message("assistant", "done")

    def cases(self, task: Task) -> Iterator[Case]:
        """The expected tree as several ways of working leave it; and with one thing amiss."""
        assert task.sandbox is not None
        before = {path: {"text": text.decode()} for path, text in task.sandbox.files.items()}
        after = {path: _found(entry) for path, entry in task.reference["files"].items()}
        after |= {path: {"text": SCRIPTS[name][1]} for path, name in task.reference["written"].items()}
        folders = {path.partition("/")[0]: {"kind": "dir", "mode": "755"} for path in after if "/" in path}

        def case(right: bool, why: str, tree: Mapping[str, Any]) -> Case:
            return Case(right=right, why=why, artifacts={TREE: verifier.tree_of({**folders, **tree})})

        bare = {path: {**e, "text": e["text"].rstrip("\n")} if "text" in e else e for path, e in after.items()}
        private = {
            path: e if "mode" in task.reference["files"][path] else {**e, "mode": "600"} for path, e in after.items()
        }
        yield case(True, "as the commands leave it", after)
        yield case(True, "without final line ends", bare)
        yield case(True, "with private files", private)
        yield case(False, "nothing was done", before)
        yield case(False, "a file is left over", {**after, "notes.tmp": {"text": "x"}})
        for path, entry in after.items():
            rest = {other: e for other, e in after.items() if other != path}
            yield case(False, f"{path} is missing", rest)
            if entry.get("kind") != "dir":
                yield case(False, f"{path} is a folder", {**rest, path: {"kind": "dir"}})
            if "text" in entry and "text" in task.reference["files"][path]:
                yield case(False, f"{path} has a line more", {**rest, path: {**entry, "text": entry["text"] + "x\n"}})
            if "mode" in task.reference["files"][path]:
                yield case(False, f"{path} has another mode", {**rest, path: {**entry, "mode": "604"}})

    async def second_opinion(self, task: Task, case: Case, bench: Bench) -> bool | None:
        """The tree as the commands leave it is right; one that lacks a file, or has one of another text, is wrong."""
        if TREE not in case.artifacts:
            return False
        tree = json.loads(case.artifacts[TREE])
        wanted, written = task.reference["files"], task.reference["written"]
        for path, entry in wanted.items():
            if path not in tree:
                return False
            said, folder = tree[path].get("text", ""), tree[path]["kind"] == "dir"
            if "text" in entry and (folder or said.rstrip("\n") != entry["text"].rstrip("\n")):
                return False
            if path in written and said != SCRIPTS[written[path]][1]:
                return None
        extra = [path for path, found in tree.items() if found["kind"] != "dir" and path not in wanted]
        plain = all(entry.keys() <= {"text"} or path in written for path, entry in wanted.items())
        return None if extra or not plain else True


class Shell(Toolset):
    output_bytes = 600

    @tool
    async def sh(self, cmd: str) -> str:
        """Run in a shell."""
        if "\0" in cmd:
            raise ToolError("a command holds no NUL")
        argv = ["sh", "-c", cmd.encode("utf-8", "replace").decode()]
        done = await self.sandbox.exec(argv, seconds=self.seconds)
        if done.cause != "exited":
            raise ToolError(f"the command was ended: {done.cause}")
        said = done.text.strip()
        return said if done.ok else f"error: exit {done.code} {said}"


class ShellEnvironment(ToolEnvironment):
    """Delivers the tree of files as a program of ours lists it, once all commands have ended."""

    async def artifacts(self) -> dict[str, bytes]:
        assert self.sandbox is not None
        done = await self.sandbox.exec(["python3", "-I", "-S", "-c", verifier.listing()], seconds=10.0)
        return {TREE: done.stdout} if done.ok and not done.truncated else {}


def draw(rng: random.Random, level: int) -> Draft:
    drawn = draw_jobs(rng, level)
    wish = "\n".join(filled(job.wish, job.marks) for job in drawn)
    before = {path: text for job in drawn for path, text in filled_keys(job.before, job.marks).items()}
    written = {path: name for job in drawn for path, name in filled_keys(job.written, job.marks).items()}

    def build(rng: random.Random) -> Task:
        runs = {path: [SCRIPTS[name][2](rng) for _ in range(3)] for path, name in written.items()}
        return Task(
            id="",
            domain=Terminal.name,
            messages=(Message("user", wish),),
            tools=Shell().specs(),
            sandbox=SandboxSpec(files={path: text.encode() for path, text in before.items()}, output=1 << 20),
            limits=Limits(turns=3 + level, tokens=128 * level, turn_tokens=96 * level),
            artifacts=(TREE,),
            reference={
                "files": {path: entry for job in drawn for path, entry in _expected(job).items()},
                "scripts": {
                    path: [{"args": args, "stdin": given, "stdout": out} for args, given, out in several]
                    for path, several in runs.items()
                },
                "commands": [filled(job.command, job.marks) for job in drawn],
                "written": written,
            },
        )

    return Draft("; ".join(sorted(job.command for job in drawn)), f"{wish}\n{before}", build)


def _expected(job: Job) -> dict[str, dict[str, Any]]:
    """`after` as entries of `verifiers.terminal`."""

    def expected(entry: str | dict[str, Any]) -> dict[str, Any]:
        if isinstance(entry, str):
            return {"text": entry}
        if "archive" in entry:
            return {"archive": filled_keys(entry["archive"], job.marks)}
        return {"to": filled(entry["to"], job.marks)} if "to" in entry else entry

    return filled_keys({path: expected(entry) for path, entry in job.after.items()}, job.marks)


def _found(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An expected entry as the listing would show it."""
    if "archive" in entry:
        return {"base64": base64.b64encode(gzip.compress(tarred(entry["archive"]), mtime=0)).decode()}
    return {"kind": "link", **entry} if "to" in entry else {"kind": "dir"} if "dir" in entry else dict(entry)
