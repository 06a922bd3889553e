"""Terminal work: files are to be searched, sorted, renamed, packed, protected or written with shell commands.

Level 1: one command. Level 2: a pipeline, an archive, many files at once. Level 3: two of these and a small script,
which is run on hidden input. Graded is the tree of files that was left behind, collateral damage included, however it
came about. Each command has a shell of its own in the working directory; a message without a call ends the episode.
"""

# ruff: noqa: E501, SIM905  (tables with one entry a line, words in one string)

from __future__ import annotations

import base64
import gzip
import io
import json
import random
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from temper.core.protocols import Environment, Resources
from temper.core.task import Case, Limits, Message, SandboxSpec, Split, Task, ToolCall
from temper.domains.generated import LEVELS, Draft, stream
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
            said = tree.get(path, {}).get("text", "")
            if path not in tree or ("text" in entry and said.rstrip("\n") != entry["text"].rstrip("\n")):
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


class Job(Struct, frozen=True):
    """A wish, a command that fulfils it, files before and after (see `verifiers.terminal`), and scripts to be written."""

    wish: str
    command: str
    before: dict[str, str]
    after: dict[str, dict[str, Any]]
    written: dict[str, str] = {}


class Names:
    """Names that no other job of the task uses."""

    def __init__(self, rng: random.Random) -> None:
        self.files = rng.sample(_FILES, len(_FILES))
        self.folders = rng.sample(_FOLDERS, len(_FOLDERS))

    def file(self, ending: str = ".txt") -> str:
        return self.files.pop() + ending

    def folder(self) -> str:
        return self.folders.pop()


_WORDS = "red blue green pink gold grey black white brown amber".split()
_FILES = "notes items words list data names stock cards parts songs towns plans marks tools rooms trips".split()
_FOLDERS = "docs logs old new box tmp src pack home keys site copy".split()
_KINDS = "cat dog fish bird".split()


def _lines(rng: random.Random, n: int = 6) -> list[str]:
    """Different lines, each a word and a number."""
    return [f"{rng.choice(_WORDS)} {number}" for number in rng.sample(range(10, 99), n)]


def _text(lines: list[Any]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _same(files: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    return {path: {"text": text} for path, text in files.items()}


def _into(wish: str, command: str, before: dict[str, str], out: str, text: str) -> Job:
    """A job that leaves everything as it was and writes one file."""
    return Job(wish, f"{command} > {out}", before, {**_same(before), out: {"text": text}})


def _grep(rng: random.Random, names: Names) -> Job:
    a, out, lines = names.file(), names.file(), _lines(rng)
    word = rng.choice(lines).split()[0]
    found = [line for line in lines if word in line]
    return _into(f"Lines of {a} with {word} into {out}.", f"grep {word} {a}", {a: _text(lines)}, out, _text(found))


def _sort(rng: random.Random, names: Names) -> Job:
    a, out, lines = names.file(), names.file(), _lines(rng)
    return _into(f"Sort {a} into {out}.", f"sort {a}", {a: _text(lines)}, out, _text(sorted(lines)))


def _head(rng: random.Random, names: Names) -> Job:
    a, out, lines, n = names.file(), names.file(), _lines(rng), rng.randint(2, 4)
    which, part = rng.choice([("head", lines[:n]), ("tail", lines[-n:])])
    word = "First" if which == "head" else "Last"
    return _into(f"{word} {n} lines of {a} into {out}.", f"{which} -n {n} {a}", {a: _text(lines)}, out, _text(part))


def _count(rng: random.Random, names: Names) -> Job:
    a, out, lines = names.file(), names.file(), _lines(rng, rng.randint(5, 20))
    return _into(f"Number of lines of {a} into {out}.", f"wc -l < {a}", {a: _text(lines)}, out, str(len(lines)))


def _replace(rng: random.Random, names: Names) -> Job:
    a, lines = names.file(), _lines(rng)
    old = rng.choice(lines).split()[0]
    new = rng.choice([word for word in _WORDS if word != old])
    after = _text(lines).replace(old, new)
    return Job(f"Replace {old} by {new} in {a}.", f"sed -i s/{old}/{new}/g {a}", {a: _text(lines)}, _same({a: after}))


def _move(rng: random.Random, names: Names) -> Job:
    a, b, c, text, more = names.file(), names.file(), names.file(), _text(_lines(rng, 3)), _text(_lines(rng, 2))
    wish, command, after = rng.choice([
        (f"Rename {a} to {b}.", f"mv {a} {b}", {b: text}), (f"Copy {a} to {b}.", f"cp {a} {b}", {a: text, b: text}),
        (f"Delete {a}.", f"rm {a}", {}),
    ])  # fmt: skip
    return Job(wish, command, {a: text, c: more}, _same({**after, c: more}))


def _mode(rng: random.Random, names: Names) -> Job:
    a, b, mode = names.file(".sh"), names.file(".sh"), rng.choice(("755", "700", "600", "444", "500"))
    before = {a: f"echo {rng.choice(_WORDS)}\n", b: f"echo {rng.choice(_WORDS)}\n"}
    after = _same(before)
    return Job(f"Give {a} mode {mode}.", f"chmod {mode} {a}", before, {**after, a: {**after[a], "mode": mode}})


def _total(rng: random.Random, names: Names) -> Job:
    a, out, kind = names.file(".csv"), names.file(), rng.choice(_KINDS)
    rows = [(rng.choice(_WORDS), rng.choice(_KINDS), rng.randint(2, 90)) for _ in range(8)] + [
        ("red", kind, rng.randint(2, 90))
    ]
    before = {a: _text(["name,kind,n", *(",".join(map(str, row)) for row in rows)])}
    total = sum(row[2] for row in rows if row[1] == kind)
    command = f"awk -F, '$2==\"{kind}\"{{s+=$3}}END{{print s}}' {a}"
    return _into(f"Sum the n of kind {kind} in {a} into {out}.", command, before, out, str(total))


def _frequent(rng: random.Random, names: Names) -> Job:
    a, out = names.file(), names.file()
    counts = dict(zip(rng.sample(_WORDS, 4), rng.sample(range(1, 9), 4), strict=True))
    lines = [word for word, n in counts.items() for _ in range(n)]
    rng.shuffle(lines)
    ranked = [f"{n} {word}" for word, n in Counter(lines).most_common()]
    command = f"sort {a} | uniq -c | sort -rn | awk '{{print $1, $2}}'"
    return _into(
        f"How often each line of {a} occurs, as 'count line', most first, into {out}.",
        command,
        {a: _text(lines)},
        out,
        _text(ranked),
    )


def _column(rng: random.Random, names: Names) -> Job:
    a, out = names.file(".csv"), names.file()
    rows = [(rng.choice(_WORDS), rng.choice(_KINDS), rng.randint(2, 90)) for _ in range(8)]
    at = rng.randint(1, 2)
    before = {a: _text([",".join(map(str, row)) for row in rows])}
    command = f"cut -d, -f{at} {a} | sort -u"
    return _into(
        f"Different values of column {at} of {a}, sorted, into {out}.",
        command,
        before,
        out,
        _text(sorted({row[at - 1] for row in rows})),
    )


def _folder(rng: random.Random, names: Names, endings: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """A folder with one to three files of each ending."""
    folder = names.folder()
    return folder, {
        f"{folder}/{word}{ending}": _text(_lines(rng, 2))
        for ending in endings
        for word in rng.sample(_WORDS, rng.randint(1, 3))
    }


def _joined(rng: random.Random, names: Names) -> Job:
    folder, files = _folder(rng, names, (".txt", ".log"))
    out, ending = names.file(), rng.choice((".txt", ".log"))
    text = "".join(files[path] for path in sorted(files) if path.endswith(ending))
    return _into(
        f"Join the {ending} files of {folder} in the order of their names into {out}.",
        f"cat {folder}/*{ending}",
        files,
        out,
        text,
    )


def _sorted_out(rng: random.Random, names: Names) -> Job:
    folder, files = _folder(rng, names, (".txt", ".log"))
    other, ending = names.folder(), rng.choice((".txt", ".log"))
    after = {path.replace(folder, other, 1) if path.endswith(ending) else path: text for path, text in files.items()}
    command = f"mkdir {other} && mv {folder}/*{ending} {other}"
    return Job(f"Move the {ending} files of {folder} into a new folder {other}.", command, files, _same(after))


def _protect(rng: random.Random, names: Names) -> Job:
    folder, files = _folder(rng, names, (".key", ".pub"))
    mode, ending = rng.choice(("600", "400", "640", "440")), rng.choice((".key", ".pub"))
    after = {path: {"text": text, **({"mode": mode} if path.endswith(ending) else {})} for path, text in files.items()}
    return Job(f"Give all {ending} files in {folder} mode {mode}.", f"chmod {mode} {folder}/*{ending}", files, after)


def _empty(rng: random.Random, names: Names) -> Job:
    folder, files = _folder(rng, names, (".txt", ".log"))
    before = files | {f"{folder}/{word}.dat": "" for word in rng.sample(_WORDS, rng.randint(1, 3))}
    return Job(f"Delete the empty files in {folder}.", f"find {folder} -type f -empty -delete", before, _same(files))


def _pack(rng: random.Random, names: Names) -> Job:
    folder, files = _folder(rng, names, (".txt", ".md"))
    out = f"{folder}.tar.gz"
    return Job(
        f"Pack {folder} into {out}.", f"tar czf {out} {folder}", files, {**_same(files), out: {"archive": files}}
    )


def _unpack(rng: random.Random, names: Names) -> Job:
    folder, files = _folder(rng, names, (".txt", ".md"))
    archive, other = f"{folder}.tar", names.folder()
    before = {archive: tarred(files).decode()}
    after = _same(before) | _same({f"{other}/{path}": text for path, text in files.items()})
    return Job(
        f"Unpack {archive} into a new folder {other}.", f"mkdir {other} && tar xf {archive} -C {other}", before, after
    )


def _link(rng: random.Random, names: Names) -> Job:
    name, versions = names.file(""), rng.sample(range(2, 40), 4)
    before = {f"{name}-{n}.txt": _text(_lines(rng, 2)) for n in versions}
    target = f"{name}-{max(versions)}.txt"
    command = f"ln -s $(ls {name}-*.txt | sort -V | tail -n 1) {name}"
    return Job(
        f"Make {name} a symbolic link to the {name}-*.txt with the highest number.",
        command,
        before,
        {**_same(before), name: {"to": target}},
    )


Run = tuple[list[str], str, str]  # arguments, input, and what is to be printed


def _run_total(rng: random.Random) -> Run:
    numbers = [rng.randint(1, 99) for _ in range(5)]
    return [], _text(numbers), str(sum(numbers))


def _run_count(rng: random.Random) -> Run:
    lines = ["red 1", *_lines(rng)]
    return ["red"], _text(lines), str(sum("red" in line for line in lines))


def _run_last(rng: random.Random) -> Run:
    words = rng.sample(_WORDS, 5)
    return [], " ".join(words) + "\n", _text(words[::-1])


def _run_upper(rng: random.Random) -> Run:
    lines = _lines(rng)
    return [], "\n\n".join(lines) + "\n", _text(lines).upper()


def _run_most(rng: random.Random) -> Run:
    numbers = rng.sample(range(2, 200), 5)
    return [str(number) for number in numbers], "", str(max(numbers))


# Scripts to be written: what they do, the script, and a run of it.
SCRIPTS: dict[str, tuple[str, str, Callable[[random.Random], Run]]] = {
    "total": ("prints the sum of the numbers on its input, one a line", "awk '{s+=$1}END{print s+0}'\n", _run_total),
    "count": (
        "prints how many lines of its input hold the word that is its argument",
        'grep -c -- "$1"\ntrue\n',
        _run_count,
    ),
    "last": ("prints the words of its input in reverse order, one a line", "tr -s ' ' '\\n' | tac\n", _run_last),
    "upper": ("prints its input in capitals, without empty lines", "grep . | tr a-z A-Z\n", _run_upper),
    "most": ("prints the largest of its arguments", "printf '%s\\n' \"$@\" | sort -n | tail -n 1\n", _run_most),
}
ONE = (_grep, _sort, _head, _count, _replace, _move, _mode)
SEVERAL = (_total, _frequent, _column, _joined, _sorted_out, _protect, _empty, _pack, _unpack, _link)


def _script(rng: random.Random, names: Names) -> Job:
    name = rng.choice(list(SCRIPTS))
    path = names.file(".sh")
    does, script, _ = SCRIPTS[name]
    command = f"cat > {path} <<'EOF'\n{script}EOF"
    return Job(f"Write {path}: run by sh, it {does}.", command, {}, {path: {}}, {path: name})


def draw(rng: random.Random, level: int) -> Draft:
    names = Names(rng)
    makers: list[Callable[[random.Random, Names], Job]] = [rng.choice(ONE)] if level == 1 else [rng.choice(SEVERAL)]
    if level == 3:
        makers = [*rng.sample(SEVERAL, 2), _script]
    jobs = [make(rng, names) for make in makers]
    wish = "\n".join(job.wish for job in jobs)
    before = {path: text for job in jobs for path, text in job.before.items()}
    written = {path: name for job in jobs for path, name in job.written.items()}

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
                "files": {path: entry for job in jobs for path, entry in job.after.items()},
                "scripts": {
                    path: [{"args": args, "stdin": given, "stdout": out} for args, given, out in several]
                    for path, several in runs.items()
                },
                "commands": [job.command for job in jobs],
                "written": written,
            },
        )

    return Draft("; ".join(job.command for job in jobs), f"{wish}\n{before}", build)


def tarred(files: Mapping[str, str]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return held.getvalue()


def _found(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An expected entry as the listing would show it."""
    if "archive" in entry:
        return {"base64": base64.b64encode(gzip.compress(tarred(entry["archive"]), mtime=0)).decode()}
    return {"kind": "link", **entry} if "to" in entry else dict(entry)
