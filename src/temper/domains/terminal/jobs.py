"""Jobs for a shell: what is wished, a command that does it, and the files before and after.

Wishes, commands and paths are written with marks (see `filters`): names and words are the task's surface. What the
command says with its marks left in (kind, options, thresholds, order) is the job. Level 1: one command. Level 2: a
pipeline, an archive, many files at once. Level 3: two of these and a script.
"""

# ruff: noqa: E501, SIM905  (tables with one entry a line, words in one string)

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from msgspec import Struct

from temper.domains.terminal import filters
from temper.domains.terminal.filters import COLOURS, FINISH, KEEP, NAMES, SEPARATORS, TOGETHER, Marks, filled

Files = dict[str, str]
Entries = dict[str, Any]  # a text, or an entry of `verifiers.terminal`
Run = tuple[list[str], str, str]  # arguments, input, and what is to be printed


class Job(Struct, frozen=True):
    """`before` and `after`: by path. `written`: names in `SCRIPTS` by path."""

    wish: str
    command: str
    marks: Marks
    before: Files
    after: Entries
    written: Files = {}


T = TypeVar("T")
Maker = Callable[[random.Random, dict[str, str]], Job | None]

_FILES = "notes items words list data names stock cards parts songs towns plans marks tools rooms trips".split()
_SUFFIXES = (".txt", ".log")
_FOLDERS = "docs logs old spare box temp src pack home keys site copy".split()


def draw_jobs(rng: random.Random, level: int) -> list[Job]:
    """The jobs of one task, none of which uses a name of another."""
    names, folders = rng.sample(_FILES, len(_FILES)), rng.sample(_FOLDERS, len(_FOLDERS))
    found = []
    for makers in ([LEVEL_1], [LEVEL_2], [LEVEL_2, LEVEL_2, [_script]])[level - 1]:
        own = {mark: names.pop() for mark in ("FILE", "OTHER", "OUT")} | {m: folders.pop() for m in ("DIR", "FRESH")}
        make = rng.choice(makers)
        while (job := make(rng, dict(own))) is None:
            pass
        found.append(job)
    return found


def filled_keys(entries: Mapping[str, T], marks: Marks) -> dict[str, T]:
    return {filled(path, marks): entry for path, entry in entries.items()}


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _one_filter(rng: random.Random, marks: dict[str, str]) -> Job | None:
    return _filtered(rng, marks, [rng.choice(KEEP + FINISH)])


def _pipeline(rng: random.Random, marks: dict[str, str]) -> Job | None:
    first = rng.sample(KEEP, rng.randint(1, 2))
    return _filtered(rng, marks, [*first, rng.choice([make for make in KEEP + FINISH + TOGETHER if make not in first])])


def _filtered(rng: random.Random, marks: dict[str, str], makers: list[filters.Make]) -> Job | None:
    """Lines go through filters; None where one of them leaves nothing, or might as well not be there."""
    ending = rng.choice(list(SEPARATORS))
    lines, words = filters.table(rng, SEPARATORS[ending])
    marks |= words
    steps = [make(rng, SEPARATORS[ending]) for make in makers]
    out = _through(steps, lines, marks)
    if not out or any(_through(steps[:at] + steps[at + 1 :], lines, marks) == out for at in range(len(steps))):
        return None
    source, sink, before = f"FILE{ending}", rng.choice(("into", "to the end of", "in place")), {}
    first, *rest = (step.command for step in steps)
    if rest and rng.random() < 0.4:
        source, sink, parts = f"DIR/*{ending}", "into", sorted(rng.sample(COLOURS, 3))
        cuts = [0, *sorted(rng.sample(range(1, len(lines)), 2)), len(lines)]
        before = {f"DIR/{name}{ending}": _text(lines[cuts[k] : cuts[k + 1]]) for k, name in enumerate(parts)}
        before |= {f"DIR/{name}.log": f"{name}\n" for name in rng.sample(COLOURS, 2)}
        first = f"cat {source} | {first}"
    else:
        before = {source: _text(lines)}
        first += f" < {source}" if first.startswith(("tr ", "wc ")) else f" {source}"
    told = ", then ".join(step.wish for step in steps) + "."
    command, text = " | ".join([first, *rest]), _text(out)
    if sink == "in place" and not rest:
        if not command.startswith("sed "):
            return None
        return Job(f"Change {source}: {told}", command.replace("sed", "sed -i", 1), marks, before, {source: text})
    if sink == "in place":
        return Job(f"Change {source}: {told}", f"{command} > OUT && mv OUT {source}", marks, before, {source: text})
    told = f"From {source} {sink} OUT.txt: {told}"
    if sink == "into":
        return Job(told, f"{command} > OUT.txt", marks, before, before | {"OUT.txt": text})
    held = _text(rng.sample(NAMES, 2))
    return Job(told, f"{command} >> OUT.txt", marks, before | {"OUT.txt": held}, before | {"OUT.txt": held + text})


def _through(steps: list[filters.Filter], lines: list[str], marks: Marks) -> list[str]:
    for step in steps:
        lines = step.run(lines, marks) if lines else []
    return lines


def _but(files: Files, *paths: str) -> Files:
    return {path: text for path, text in files.items() if path not in paths}


def _side_by_side(files: Files, between: str) -> str:
    pairs = zip(files["FILE.txt"].split("\n")[:-1], files["OTHER.txt"].split("\n")[:-1], strict=True)
    return _text([f"{a}{between}{b}" for a, b in pairs])


def _shared(files: Files, shared: bool) -> str:
    other = files["OTHER.txt"].split("\n")
    return _text([line for line in files["FILE.txt"].split("\n")[:-1] if (line in other) == shared])


# What is wished of FILE.txt, OTHER.txt and DIR/PART.txt; a command; and what becomes of them.
_PLAIN: tuple[tuple[str, str, Callable[[Files], Entries]], ...] = (
    ("Rename FILE.txt to OUT.txt.", "mv FILE.txt OUT.txt", lambda b: _but(b, "FILE.txt") | {"OUT.txt": b["FILE.txt"]}),
    ("Copy FILE.txt to OUT.txt.", "cp FILE.txt OUT.txt", lambda b: b | {"OUT.txt": b["FILE.txt"]}),
    ("Delete FILE.txt.", "rm FILE.txt", lambda b: _but(b, "FILE.txt")),
    ("Delete FILE.txt and OTHER.txt.", "rm FILE.txt OTHER.txt", lambda b: _but(b, "FILE.txt", "OTHER.txt")),
    ("Move FILE.txt into DIR.", "mv FILE.txt DIR", lambda b: _but(b, "FILE.txt") | {"DIR/FILE.txt": b["FILE.txt"]}),
    ("Copy FILE.txt into DIR.", "cp FILE.txt DIR", lambda b: b | {"DIR/FILE.txt": b["FILE.txt"]}),
    ("Move DIR/PART.txt out of DIR.", "mv DIR/PART.txt .", lambda b: _but(b, "DIR/PART.txt") | {"PART.txt": b["DIR/PART.txt"], "DIR": {"dir": True}}),
    ("Copy DIR, with all that is in it, to FRESH.", "cp -r DIR FRESH", lambda b: b | {"FRESH/PART.txt": b["DIR/PART.txt"]}),
    ("Rename the folder DIR to FRESH.", "mv DIR FRESH", lambda b: _but(b, "DIR/PART.txt") | {"FRESH/PART.txt": b["DIR/PART.txt"]}),
    ("Delete the folder DIR with all that is in it.", "rm -r DIR", lambda b: _but(b, "DIR/PART.txt")),
    ("Make an empty file OUT.txt.", "touch OUT.txt", lambda b: b | {"OUT.txt": ""}),
    ("Empty FILE.txt, but keep the file.", "truncate -s 0 FILE.txt", lambda b: b | {"FILE.txt": ""}),
    ("Make a folder FRESH.", "mkdir FRESH", lambda b: b | {"FRESH": {"dir": True}}),
    ("Make a folder FRESH in DIR.", "mkdir DIR/FRESH", lambda b: b | {"DIR/FRESH": {"dir": True}}),
    ("Make OUT a symbolic link to FILE.txt.", "ln -s FILE.txt OUT", lambda b: b | {"OUT": {"to": "FILE.txt"}}),
    ("Make OUT a symbolic link to the folder DIR.", "ln -s DIR OUT", lambda b: b | {"OUT": {"to": "DIR"}}),
    ("Join FILE.txt and OTHER.txt, in this order, into OUT.txt.", "cat FILE.txt OTHER.txt > OUT.txt", lambda b: b | {"OUT.txt": b["FILE.txt"] + b["OTHER.txt"]}),
    ("Append FILE.txt to OTHER.txt.", "cat FILE.txt >> OTHER.txt", lambda b: b | {"OTHER.txt": b["OTHER.txt"] + b["FILE.txt"]}),
    ("Lines of FILE.txt that are in OTHER.txt too into OUT.txt.", "grep -xFf OTHER.txt FILE.txt > OUT.txt", lambda b: b | {"OUT.txt": _shared(b, True)}),
    ("Lines of FILE.txt that are not in OTHER.txt into OUT.txt.", "grep -vxFf OTHER.txt FILE.txt > OUT.txt", lambda b: b | {"OUT.txt": _shared(b, False)}),
    ("Lines of FILE.txt and OTHER.txt side by side, with a comma between, into OUT.txt.", "paste -d, FILE.txt OTHER.txt > OUT.txt", lambda b: b | {"OUT.txt": _side_by_side(b, ",")}),
    ("Lines of FILE.txt and OTHER.txt side by side, with a colon between, into OUT.txt.", "paste -d: FILE.txt OTHER.txt > OUT.txt", lambda b: b | {"OUT.txt": _side_by_side(b, ":")}),
    ("Names of the .txt files here, sorted, one a line, into OUT.", "ls *.txt > OUT", lambda b: b | {"OUT": _text(sorted(p for p in b if "/" not in p))}),
)  # fmt: skip


def _plain(rng: random.Random, marks: dict[str, str]) -> Job:
    wish, command, run = rng.choice(_PLAIN)
    rows = [f"{rng.choice(COLOURS)} {n}" for n in rng.sample(range(10, 99), 7)]
    texts = [_text(rows[:4]), _text(rng.sample([*rng.sample(rows[:4], 2), *rows[4:6]], 4)), _text(rows[6:])]
    before: Files = dict(zip(("FILE.txt", "OTHER.txt", "DIR/PART.txt"), texts, strict=True))
    return Job(wish, command, marks | {"PART": rng.choice(NAMES)}, before, run(before))


def _split(rng: random.Random, marks: dict[str, str]) -> Job:
    n, lines = rng.randint(2, 6), [f"{rng.choice(COLOURS)} {n}" for n in rng.sample(range(10, 99), rng.randint(7, 14))]
    parts = {f"OUT.a{'abcdefg'[at]}": _text(lines[at * n : at * n + n]) for at in range((len(lines) + n - 1) // n)}
    wish = f"Split FILE.txt into files of {n} lines: OUT.aa, OUT.ab and so on."
    before = {"FILE.txt": _text(lines)}
    return Job(wish, f"split -l {n} FILE.txt OUT.", marks, before, before | parts)


def _any_mode(rng: random.Random) -> str:
    """One that lets the owner read, and that is neither what files have anyhow nor the one that near misses have."""
    while (mode := rng.choice("4567") + rng.choice("04567") + rng.choice("045")) in ("644", "604"):
        pass
    return mode


def _mode(rng: random.Random, marks: dict[str, str]) -> Job:
    mode, before = _any_mode(rng), {path: f"echo {rng.choice(COLOURS)}\n" for path in ("FILE.sh", "OTHER.sh")}
    after = before | {"FILE.sh": {"text": before["FILE.sh"], "mode": mode}}
    return Job(f"Give FILE.sh mode {mode}.", f"chmod {mode} FILE.sh", marks, before, after)


def _lines_of(text: str) -> int:
    return text.count("\n")


# Some of the files of DIR: which; a command that prints their paths; and whether one is meant, by its rank (by name, by
# size), its path and its text. # is a number.
_SOME: tuple[tuple[str, str, Callable[[int, Marks, str, Files], bool]], ...] = (
    ("the SUFFIX files of DIR", "ls DIR/*SUFFIX", lambda n, m, p, b: p.endswith(m["SUFFIX"])),
    ("the files of DIR that are no SUFFIX files", "ls DIR/* | grep -v SUFFIX$", lambda n, m, p, b: not p.endswith(m["SUFFIX"])),
    ("the files of DIR that are empty", "find DIR -type f -empty", lambda n, m, p, b: not b[p]),
    ("the files of DIR that are not empty", "find DIR -type f -not -empty", lambda n, m, p, b: bool(b[p])),
    ("the files of DIR over #0 bytes", "find DIR -type f -size +#0c", lambda n, m, p, b: len(b[p]) > 10 * n),
    ("the files of DIR under #0 bytes", "find DIR -type f -size -#0c", lambda n, m, p, b: len(b[p]) < 10 * n),
    ("the files of DIR with WORD in them", "grep -l WORD DIR/*", lambda n, m, p, b: m["WORD"] in b[p]),
    ("the files of DIR without WORD in them", "grep -L WORD DIR/*", lambda n, m, p, b: m["WORD"] not in b[p]),
    ("the files of DIR with over # lines", "grep -c '' DIR/* | awk -F: '$2>#{print $1}'", lambda n, m, p, b: _lines_of(b[p]) > n),
    ("the files of DIR with under # lines", "grep -c '' DIR/* | awk -F: '$2<#{print $1}'", lambda n, m, p, b: _lines_of(b[p]) < n),
    ("the first # files of DIR by name", "ls DIR/* | head -n #", lambda n, m, p, b: p in sorted(b)[:n]),
    ("the last # files of DIR by name", "ls DIR/* | tail -n #", lambda n, m, p, b: p in sorted(b)[-n:]),
    ("the # largest files of DIR", "ls -S DIR/* | head -n #", lambda n, m, p, b: p in sorted(b, key=lambda q: -len(b[q]))[:n]),
    ("the # smallest files of DIR", "ls -S DIR/* | tail -n #", lambda n, m, p, b: p in sorted(b, key=lambda q: len(b[q]))[:n]),
)  # fmt: skip


def _joined(chosen: Files) -> str:
    return "".join(chosen[path] for path in sorted(chosen))


# What is done with THEM: in words, as a command, and what becomes of all files `b` of which `c` are chosen.
_DONE: tuple[tuple[str, str, Callable[[Files, Files, Marks], Entries]], ...] = (
    ("Delete THEM.", "rm $(THEM)", lambda b, c, m: _but(b, *c)),
    ("Move THEM into a new folder FRESH.", "mkdir FRESH && mv $(THEM) FRESH", lambda b, c, m: _but(b, *c) | _in("FRESH", c)),
    ("Copy THEM into a new folder FRESH.", "mkdir FRESH && cp $(THEM) FRESH", lambda b, c, m: b | _in("FRESH", c)),
    ("Move THEM here, out of DIR.", "mv $(THEM) .", lambda b, c, m: _but(b, *c) | {p.removeprefix("DIR/"): t for p, t in c.items()}),
    ("Pack THEM, with DIR in their paths, into OUT.tar.", "tar cf OUT.tar $(THEM)", lambda b, c, m: b | {"OUT.tar": {"archive": c}}),
    ("Pack THEM, with DIR in their paths, into OUT.tar.gz.", "tar czf OUT.tar.gz $(THEM)", lambda b, c, m: b | {"OUT.tar.gz": {"archive": c}}),
    ("Pack THEM, with DIR in their paths, into OUT.tar and delete them.", "tar cf OUT.tar --remove-files $(THEM)", lambda b, c, m: _but(b, *c) | {"OUT.tar": {"archive": c}}),
    ("Join THEM, in the order of their names, into OUT.", "cat $(THEM | sort) > OUT", lambda b, c, m: b | {"OUT": _joined(c)}),
    ("Names of THEM, without DIR, sorted, one a line, into OUT.", "basename -a $(THEM) | sort > OUT", lambda b, c, m: b | {"OUT": _text(sorted(p.removeprefix("DIR/") for p in c))}),
    ("All lines of THEM, sorted, into OUT.", "cat $(THEM) | sort > OUT", lambda b, c, m: b | {"OUT": _text(sorted(_joined(c).split("\n")[:-1]))}),
    ("Number of lines in all of THEM together into OUT.", "cat $(THEM) | wc -l > OUT", lambda b, c, m: b | {"OUT": str(sum(map(_lines_of, c.values())))}),
    ("Count THEM and put the number into OUT.", "THEM | wc -l > OUT", lambda b, c, m: b | {"OUT": str(len(c))}),
    ("Add TAIL to the names of THEM.", "for f in $(THEM); do mv $f $fTAIL; done", lambda b, c, m: _but(b, *c) | {p + m["TAIL"]: t for p, t in c.items()}),
    ("Empty THEM, but keep the files.", "truncate -s 0 $(THEM)", lambda b, c, m: b | dict.fromkeys(c, "")),
    ("Append a line NEW to each of THEM.", "for f in $(THEM); do echo NEW >> $f; done", lambda b, c, m: b | {p: t + m["NEW"] + "\n" for p, t in c.items()}),
    ("Replace WORD by NEW in THEM.", "sed -i s/WORD/NEW/g $(THEM)", lambda b, c, m: b | {p: t.replace(m["WORD"], m["NEW"]) for p, t in c.items()}),
    ("Give THEM mode MODE.", "chmod MODE $(THEM)", lambda b, c, m: b | {p: {"text": t, "mode": m["MODE"]} for p, t in c.items()}),
)  # fmt: skip


def _in(folder: str, files: Files) -> Files:
    return {path.replace("DIR", folder, 1): text for path, text in files.items()}


def _several(rng: random.Random, marks: dict[str, str]) -> Job | None:
    """Something is done with some files of a folder; None where these are all of them, or none, or nothing changes."""
    lines, words = filters.table(rng, " ")
    marks |= words | {"SUFFIX": rng.choice(_SUFFIXES), "TAIL": rng.choice((".old", ".bak", ".done"))}
    sizes = zip(rng.sample(COLOURS, 5), rng.sample(range(7), 5), strict=True)
    files = {f"DIR/{name}{rng.choice(_SUFFIXES)}": _text(rng.sample(lines, size)) for name, size in sizes}
    if len({len(text) for text in files.values()}) < len(files):
        return None
    n, mode = rng.randint(2, 4), _any_mode(rng)
    which, paths, meant = rng.choice(_SOME)
    wish, command, done = rng.choice(_DONE)
    chosen = {path: text for path, text in files.items() if meant(n, marks, path, files)}
    after = done(files, chosen, marks | {"MODE": mode})
    if len(chosen) in (0, len(files)) or after == files:
        return None

    def told(text: str, them: str) -> str:
        return text.replace("THEM", them).replace("#", str(n)).replace("MODE", mode)

    return Job(told(wish, which), told(command, paths), marks, files, after)


def _unpack(rng: random.Random, marks: dict[str, str]) -> Job:
    marks |= {"SUFFIX": rng.choice(_SUFFIXES)}
    names = rng.sample(COLOURS, 4)
    files = {f"DIR/{name}{_SUFFIXES[at % 2]}": f"{name} {rng.randint(1, 99)}\n" for at, name in enumerate(names)}
    before = {"OUT.tar": tarred(filled_keys(files, marks)).decode()}
    which, member, chosen = rng.choice((
        ("all of", "", files),
        ("only the SUFFIX files of", " --wildcards '*SUFFIX'", {p: t for p, t in files.items() if p.endswith(marks["SUFFIX"])}),
        ("no SUFFIX files of", " --exclude '*SUFFIX'", {p: t for p, t in files.items() if not p.endswith(marks["SUFFIX"])}),
    ))  # fmt: skip
    where, command, left = rng.choice((
        ("here", f"tar xf OUT.tar{member}", chosen),
        ("into a new folder FRESH", f"mkdir FRESH && tar xf OUT.tar -C FRESH{member}", {f"FRESH/{p}": t for p, t in chosen.items()}),
    ))  # fmt: skip
    if rng.random() < 0.5:
        return Job(
            f"Unpack {which} OUT.tar {where}; then delete OUT.tar.", f"{command} && rm OUT.tar", marks, before, left
        )
    return Job(f"Unpack {which} OUT.tar {where}.", command, marks, before, before | left)


def _versions(rng: random.Random, marks: dict[str, str]) -> Job:
    """What is done with the file of the highest number, or of the lowest."""
    numbers = rng.sample(range(2, 40), 4)
    before: Files = {f"FILE-{n}.txt": f"{rng.choice(COLOURS)} {n}\n" for n in numbers}
    which, end, number = rng.choice((("highest", "tail", max(numbers)), ("lowest", "head", min(numbers))))
    path = f"FILE-{number}.txt"
    wish, command, after = rng.choice((
        ("Make OUT a symbolic link to", "ln -s $(PATH) OUT", before | {"OUT": {"to": path}}),
        ("Copy to OUT", "cp $(PATH) OUT", before | {"OUT": before[path]}),
        ("Rename to OUT", "mv $(PATH) OUT", _but(before, path) | {"OUT": before[path]}),
        ("Delete", "rm $(PATH)", _but(before, path)),
        ("Delete all but", "PATH | xargs rm", {path: before[path]}),
    ))  # fmt: skip
    ranked = f"ls FILE-*.txt | sort -V | {end} -n 1"
    if "xargs" in command:
        ranked = ranked.replace("-n 1", "-n -1" if end == "tail" else "-n +2").replace(
            end, "head" if end == "tail" else "tail"
        )
    return Job(f"{wish} the FILE-*.txt with the {which} number.", command.replace("PATH", ranked), marks, before, after)


def _run_total(rng: random.Random) -> Run:
    numbers = [str(rng.randint(1, 99)) for _ in range(5)]
    return [], _text(numbers), str(sum(map(int, numbers)))


def _run_count(rng: random.Random) -> Run:
    lines = ["red 1", *(f"{rng.choice(COLOURS)} {n}" for n in range(6))]
    return ["red"], _text(lines), str(sum("red" in line for line in lines))


def _run_last(rng: random.Random) -> Run:
    words = rng.sample(NAMES, 5)
    return [], " ".join(words) + "\n", _text(words[::-1])


def _run_upper(rng: random.Random) -> Run:
    lines = rng.sample(NAMES, 5)
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


def _script(rng: random.Random, marks: dict[str, str]) -> Job:
    name = rng.choice(list(SCRIPTS))
    does, script, _ = SCRIPTS[name]
    command = f"cat > FILE.sh <<'EOF'\n{script}EOF"
    return Job(f"Write FILE.sh: run by sh, it {does}.", command, marks, {}, {"FILE.sh": {}}, {"FILE.sh": name})


LEVEL_1: tuple[Maker, ...] = (*[_one_filter] * 6, *[_plain] * 2, _mode, _split)
LEVEL_2: tuple[Maker, ...] = (*[_pipeline] * 4, *[_several] * 4, _unpack, _versions)


def tarred(files: Mapping[str, str]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return held.getvalue()
