"""Refactoring: a small module is to be changed so that it behaves as before and a number that is asked for goes down.

Level 1: the prompt shows a few lines: rename a function, name a constant, shorten or flatten a function. Level 2: one
module, to be read first: code that occurs twice, a function that is too long, a chain of branches. Level 3: the same
over two modules. Graded by calls of the old and the new code, the public interface, and the metric; nothing else is
prescribed, so that private helpers and layouts are free. A message without a call, such as "done", ends the episode.
"""

# ruff: noqa: E501, SIM905  (tables with one entry a line, words in one string)

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from temper.core.protocols import Environment, Resources
from temper.core.task import Case, Limits, Message, SandboxSpec, Split, Task, ToolCall
from temper.domains.generated import LEVELS, Draft, stream
from temper.rollouts.environments import ToolEnvironment
from temper.rollouts.toolsets import ToolError, Toolset, tool
from temper.verifiers.audit.bench import Bench
from temper.verifiers.audit.samples import differs


def create(config: object = None) -> Refactoring:
    return Refactoring()


class Refactoring:
    """`core.protocols.Domain`."""

    name = "refactoring"
    levels = LEVELS

    def tasks(self, split: Split, level: int, seed: int = 0) -> Iterator[Task]:
        return stream(self.name, draw, split, level, seed)

    def environment(self, task: Task, resources: Resources) -> Environment:
        return ToolEnvironment(task, Shown() if task.level == 1 else Files(), resources)

    def verifier(self, task: Task) -> tuple[str, Mapping[str, Any]]:
        return "refactor", {}

    def gold(self, task: Task) -> tuple[Message, ...]:
        solution = task.reference["solution"]
        done = Message("assistant", "done")
        if task.level == 1:
            return Message("assistant", calls=(ToolCall("write", {"text": solution["m.py"]}),)), done
        reads = tuple(ToolCall("read", {"path": path}) for path in solution)
        writes = tuple(ToolCall("write", {"path": path, "text": text}) for path, text in solution.items())
        return Message("assistant", calls=reads), Message("assistant", calls=writes), done

    def cases(self, task: Task) -> Iterator[Case]:
        """The solution in other layouts; and without effect, half done, with a slip, or with another interface."""
        assert task.sandbox is not None
        solution: dict[str, str] = task.reference["solution"]
        old = {path: text.decode() for path, text in task.sandbox.files.items()}
        for why, change in _LAYOUTS.items():
            yield Case(right=True, why=why, artifacts=_encoded({path: change(text) for path, text in solution.items()}))
        yield Case(right=False, why="nothing was changed", artifacts=_encoded(old))
        yield Case(
            right=False,
            why="only the layout was changed",
            artifacts=_encoded({p: f"# tidy\n{t}" for p, t in old.items()}),
        )
        for why, pattern, new in _SLIPS:
            path = next((path for path, text in solution.items() if re.search(pattern, text)), None)
            if path is not None:
                slip = re.sub(pattern, new, solution[path], count=1)
                yield Case(right=False, why=why, artifacts=_encoded({**solution, path: slip}))
        for why, pattern, new in _OPERATORS if task.level < 3 else ():
            slip = re.sub(pattern, new, solution["m.py"], count=1)
            if slip != solution["m.py"] and _differ(solution["m.py"], slip, task.reference):
                yield Case(right=False, why=why, artifacts=_encoded({"m.py": slip}))

    async def second_opinion(self, task: Task, case: Case, bench: Bench) -> bool | None:
        """Wrong is what does nothing, does not compile, lacks a function or behaves otherwise; right, the solution."""
        assert task.sandbox is not None
        old, reference = task.sandbox.files, task.reference
        given = {path: text.decode("utf-8", "replace") for path, text in (*old.items(), *case.artifacts.items())}
        try:
            shapes = {path: ast.dump(ast.parse(text)) for path, text in given.items()}
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
        if all(ast.dump(ast.parse(old[path])) == shape for path, shape in shapes.items()):
            return False
        names = {name: reference["renamed"].get(name, name) for name in reference["inputs"]}
        if any(f"def {name}(" not in "\n".join(given.values()) for name in names.values()):
            return False
        ours = {**{path: text.decode() for path, text in old.items()}, **reference["solution"]}
        calls = [[names[name], [_probe(kind, n) for kind in kinds], {}]
                 for name, kinds in reference["inputs"].items() for n in range(30)]  # fmt: skip
        if await differs(bench, task, ours, case.artifacts, reference["module"], calls):
            return False
        return True if all(shapes[path] == ast.dump(ast.parse(text)) for path, text in ours.items()) else None


def _probe(kind: Mapping[str, Any], n: int) -> Any:
    """The nth number, or a list of that many."""
    return n - 9 if "int" in kind else [(7 * k + n) % 40 - 5 for k in range(n % 6)]


_LAYOUTS: dict[str, Callable[[str], str]] = {
    "as the author wrote it": lambda text: text,
    "as ast writes it": lambda text: ast.unparse(ast.parse(text)),
    "with comments": lambda text: "# a module\n" + text.replace("\n    ", "\n    # a step\n    ", 1),
    "with a docstring": lambda text: '"""A module."""\n\n' + text,
    "indented by two": lambda text: re.sub(r"^( +)", lambda found: found[1][: len(found[1]) // 2], text, flags=re.M),
    "with Windows line ends": lambda text: text.replace("\n", "\r\n"),
    "other private names": lambda text: re.sub(r"\b_([a-z])(\w*)\b(?!_)", r"_the_\1\2", text),
}
_SLIPS = (
    ("a function has another name", r"def ([a-z]\w*)\(", r"def \1_new("),
    ("a function takes more", r"def ([a-z]\w*)\(", r"def \1(extra, "),
    ("the last result is in a list", r"(?<=return )([^\n]*)$(?![\s\S]*return )", r"[\1]"),
    ("an error at import", r"\Z", "\nraise ValueError\n"),
    ("a public helper", r"\Z", "\n\ndef helper():\n    return 0\n"),
)


_OPERATORS = (
    ("another comparison", r" > ", " >= "),
    ("the opposite comparison", r" > ", " <= "),
    ("another operator", r" \+ ", " - "),
    ("another operator", r" \* ", " + "),
    ("another constant", r"(?<=[ (])([3-9]|[1-3][0-9])(?=[\n ):])", r"(\1 + 1)"),
)


def _differ(right: str, slip: str, reference: Mapping[str, Any]) -> bool:
    """Whether two texts of ours behave differently, by running both over small inputs."""
    lists = [[n] for n in range(-9, 46)] + [[], [5, 4], [40, -3, 40]]
    calls = [
        (reference["renamed"].get(name, name), argument)
        for name, kinds in reference["inputs"].items()
        for argument in (range(-12, 46) if "int" in kinds[0] else lists)
    ]
    told = []
    for text in (right, slip):
        scope: dict[str, Any] = {}
        exec(text, scope)
        told.append([repr(scope[name](argument)) for name, argument in calls])
    return told[0] != told[1]


class Shown(Toolset):
    """Tools for a module whose text is in the prompt."""

    output_bytes = 1500

    @tool
    async def write(self, text: str) -> None:
        """Replace m.py."""
        await _put(self, "m.py", text)


class Files(Toolset):
    """Tools for several files."""

    output_bytes = 3000

    @tool
    async def read(self, path: str) -> str:
        """Show a file."""
        try:
            return (await self.sandbox.get(path)).decode("utf-8", "replace")
        except OSError:
            raise ToolError(f"no file {path}") from None

    @tool
    async def write(self, path: str, text: str) -> None:
        """Replace a file."""
        await _put(self, path, text)


async def _put(tools: Toolset, path: str, text: str) -> None:
    try:
        await tools.sandbox.put(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise ToolError(f"{path} cannot be written: {error.strerror}") from None


class Kind(Struct, frozen=True):
    """A wish, the modules before and after, and how the result is judged; all filled in with names and constants.

    {f}, {g}, {h} functions, {n} a new name, {N} a constant's name, {x} a number, {xs} a list, {k}, {w}, {v} constants.
    `goals`: (metric, most, of). `inputs`: functions and their parameters, "n" a number, "l" a list of numbers.
    """

    wish: str
    before: Mapping[str, str]
    after: Mapping[str, str]
    goals: tuple[tuple[str, int, str], ...]
    inputs: Mapping[str, str]
    renamed: Mapping[str, str] = {}
    adds: tuple[str, ...] = ()


def _one(wish: str, before: str, after: str, *more: Any, **rules: Any) -> Kind:
    return Kind(wish, {"m.py": before}, {"m.py": after}, *more, **rules)


_CLEAN = "{t} = []\n    for {x} in {xs}:\n        if {x} > {k}:\n            {t}.append({x} * {w})\n    {t}.sort()\n"
_FLAT = "{t} = 0\n    for {x} in {xs}:\n        if {x} % {w}:\n            {t} += {x}\n    {t} = {t} + {k}\n"
_MORE = "{t} = list({xs})\n    {t}.append({k})\n    {t}.reverse()\n    {t}.insert(0, {w})\n"

ONE = (
    _one("Rename {f} to {n}.", "def {f}({x}):\n    return {x} * {k} + {w}\n\ndef {g}({x}):\n    return {f}({x}) - {v}\n",
         "def {n}({x}):\n    return {x} * {k} + {w}\n\ndef {g}({x}):\n    return {n}({x}) - {v}\n",
         (("uses", 0, "{f}"),), {"{f}": "n", "{g}": "n"}, renamed={"{f}": "{n}"}),
    _one("Name the {k} {N}.", "def {f}({x}):\n    return {x} * {k}\n\ndef {g}({x}):\n    return {x} + {k} - {w}\n",
         "{N} = {k}\n\ndef {f}({x}):\n    return {x} * {N}\n\ndef {g}({x}):\n    return {x} + {N} - {w}\n",
         (("literals", 1, "{k}"),), {"{f}": "n", "{g}": "n"}, adds=("{N}",)),
    _one("Make {f} one statement.", "def {f}({x}):\n    if {x} > {k}:\n        return True\n    return {x} == {w}\n",
         "def {f}({x}):\n    return {x} > {k} or {x} == {w}\n", (("longest", 1, ""),), {"{f}": "n"}),
    _one("Make {f} one statement.", "def {f}({xs}):\n    {t} = {k}\n    for {x} in {xs}:\n        {t} += {x} * {w}\n    return {t}\n",
         "def {f}({xs}):\n    return {k} + sum({x} * {w} for {x} in {xs})\n", (("longest", 1, ""),), {"{f}": "l"}),
    _one("No if in an if.", "def {f}({x}):\n    if {x} > {w}:\n        if {x} % {v}:\n            return {k}\n    return {x}\n",
         "def {f}({x}):\n    if {x} > {w} and {x} % {v}:\n        return {k}\n    return {x}\n", (("nesting", 1, ""),), {"{f}": "n"}),
    _one("Use no loop.", "def {f}({xs}):\n    {t} = []\n    for {x} in {xs}:\n        if {x} > {k}:\n            {t}.append({x} - {w})\n    return {t}\n",
         "def {f}({xs}):\n    return [{x} - {w} for {x} in {xs} if {x} > {k}]\n", (("nesting", 0, ""), ("longest", 2, "")), {"{f}": "l"}),
)  # fmt: skip


def _two(block: str, one: str, two: str) -> Kind:
    helper = f"def _common({{xs}}):\n    {block}    return {{t}}\n\n"
    call = "    {t} = _common({xs})\n"
    return _one(
        "{f} and {g} share code. No statements in runs of three or more may occur twice.",
        f"def {{f}}({{xs}}):\n    {block}    return {one}\n\ndef {{g}}({{xs}}):\n    {block}    return {two}\n",
        f"{helper}def {{f}}({{xs}}):\n{call}    return {one}\n\ndef {{g}}({{xs}}):\n{call}    return {two}\n",
        (("duplicates", 0, ""),), {"{f}": "l", "{g}": "l"},
    )  # fmt: skip


_CHAIN = "".join(
    f"    {'if' if n == 0 else 'elif'} {{x}} == {{k}} + {n}:\n        return {{w}} * {n + 2}\n" for n in range(5)
)
_CHOICE = "{{" + ", ".join(f"{{k}} + {n}: {{w}} * {n + 2}" for n in range(5)) + "}}"
SEVERAL = (
    _two(_CLEAN, "{t}[:{v}]", "len({t}) + {v}"), _two(_CLEAN, "sum({t}) - {v}", "{t}[::-1]"),
    _two(_FLAT, "{t} * {v}", "{t} > {v}"), _two(_FLAT, "-{t}", "[{t}, {v}]"), _two(_MORE, "{t}[:{v}]", "sum({t})"),
    _one("{f} has too many branches: its cyclomatic complexity has to be 3 or less.",
         f"def {{f}}({{x}}):\n{_CHAIN}    return {{v}}\n", f"def {{f}}({{x}}):\n    return {_CHOICE}.get({{x}}, {{v}})\n",
         (("complexity", 3, ""),), {"{f}": "n"}),
    _one("{f} is too long: no function may have more than 6 statements.",
         f"def {{f}}({{xs}}):\n    {_CLEAN}    {{u}} = {{v}}\n    for {{x}} in {{t}}:\n        {{u}} += {{x}} % {{w}}\n    return {{u}}\n",
         f"def _kept({{xs}}):\n    {_CLEAN}    return {{t}}\n\ndef {{f}}({{xs}}):\n    {{u}} = {{v}}\n    for {{x}} in _kept({{xs}}):\n        {{u}} += {{x}} % {{w}}\n    return {{u}}\n",
         (("longest", 6, ""),), {"{f}": "l"}),
    _one("Rename {f} to {n} and name the {k} {N}.",
         "def {f}({xs}):\n    return [{x} * {k} for {x} in {xs}]\n\ndef {g}({xs}):\n    return sum({f}({xs})) + {k}\n\ndef {h}({xs}):\n    return {f}({xs})[:{w}]\n",
         "{N} = {k}\n\ndef {n}({xs}):\n    return [{x} * {N} for {x} in {xs}]\n\ndef {g}({xs}):\n    return sum({n}({xs})) + {N}\n\ndef {h}({xs}):\n    return {n}({xs})[:{w}]\n",
         (("uses", 0, "{f}"), ("literals", 1, "{k}")), {"{f}": "l", "{g}": "l", "{h}": "l"}, renamed={"{f}": "{n}"}, adds=("{N}",)),
)  # fmt: skip


def _modules(block: str, one: str, two: str) -> Kind:
    """A block in both of two modules; m.py uses parts.py."""
    use = "from parts import {g}\n\n\n"
    both = "from parts import _common, {g}\n\n\n"
    call, helper = "    {t} = _common({xs})\n", f"def _common({{xs}}):\n    {block}    return {{t}}\n\n\n"
    run = "\n\ndef {h}({xs}):\n    return [{f}({xs}), {g}({xs})]\n"
    return Kind(
        "m.py and parts.py share code. No statements in runs of three or more may occur twice in them.",
        {"m.py": f"{use}def {{f}}({{xs}}):\n    {block}    return {one}\n{run}", "parts.py": f"def {{g}}({{xs}}):\n    {block}    return {two}\n"},
        {"m.py": f"{both}def {{f}}({{xs}}):\n{call}    return {one}\n{run}", "parts.py": f"{helper}def {{g}}({{xs}}):\n{call}    return {two}\n"},
        (("duplicates", 0, ""),), {"{f}": "l", "{h}": "l"},
    )  # fmt: skip


ACROSS = (
    _modules(_CLEAN, "{t}[:{v}]", "len({t}) + {v}"), _modules(_FLAT, "{t} * {v}", "[{t}, {v}]"),
    _modules(_MORE, "{t}[:{v}]", "sum({t})"),
    Kind("Rename {g} of parts.py to {n}, and use it everywhere.",
         {"m.py": "from parts import {g}, {h}\n\n\ndef {f}({xs}):\n    return [{g}({x}) for {x} in {xs}] + [{h}({k})]\n",
          "parts.py": "def {g}({x}):\n    return {x} * {k} - {w}\n\n\ndef {h}({x}):\n    return {g}({x}) + {v}\n"},
         {"m.py": "from parts import {n}, {h}\n\n\ndef {f}({xs}):\n    return [{n}({x}) for {x} in {xs}] + [{h}({k})]\n",
          "parts.py": "def {n}({x}):\n    return {x} * {k} - {w}\n\n\ndef {h}({x}):\n    return {n}({x}) + {v}\n"},
         (("uses", 0, "{g}"),), {"{f}": "l", "{h}": "n"}, renamed={"{g}": "{n}"}),
    Kind("Name the {k} {N}, in parts.py alone, and use it in both modules.",
         {"m.py": "from parts import {g}\n\n\ndef {f}({xs}):\n    return [{g}({x}) for {x} in {xs} if {x} != {k}]\n",
          "parts.py": "def {g}({x}):\n    return {x} * {k} - {w}\n\n\ndef {h}({x}):\n    return {g}({x}) + {v} - {k}\n"},
         {"m.py": "from parts import {N}, {g}\n\n\ndef {f}({xs}):\n    return [{g}({x}) for {x} in {xs} if {x} != {N}]\n",
          "parts.py": "{N} = {k}\n\n\ndef {g}({x}):\n    return {x} * {N} - {w}\n\n\ndef {h}({x}):\n    return {g}({x}) + {v} - {N}\n"},
         (("literals", 1, "{k}"),), {"{f}": "l", "{g}": "n"}, adds=("{N}",)),
)  # fmt: skip

_KINDS = {1: ONE, 2: SEVERAL, 3: ACROSS}
_FUNCTIONS = "grow calc pick step move load rank score mark scale check shift part trim fold join".split()
_NUMBERS, _LISTS, _TOTALS = "x n v d".split(), "xs rows nums items".split(), "out total found kept".split()
_CONSTANTS = "RATE LIMIT STEP BASE SIZE COST".split()
_INPUTS = {"n": {"int": [-12, 45]}, "l": {"list": {"int": [-9, 45]}, "most": 6}}


def draw(rng: random.Random, level: int) -> Draft:
    kinds = _KINDS[level]
    number = rng.randrange(len(kinds))
    kind = kinds[number]
    constants = rng.sample(range(3, 40), 2)
    functions = rng.sample(_FUNCTIONS, 4)
    names = dict(zip("fghn", functions, strict=True))
    names |= {"x": rng.choice(_NUMBERS), "xs": rng.choice(_LISTS), "N": rng.choice(_CONSTANTS)}
    names |= dict(zip("tu", rng.sample(_TOTALS, 2), strict=True))
    names |= {
        "k": str(constants[0]),
        "w": str(constants[1]),
        "v": str(rng.choice([n for n in range(2, 9) if n not in constants])),
    }
    before, after = ({path: text.format(**names) for path, text in side.items()} for side in (kind.before, kind.after))
    wish = kind.wish.format(**names)
    asked = f"{before['m.py']}{wish}" if level == 1 else f"{', '.join(before)}: {wish}"

    def build(rng: random.Random) -> Task:
        return Task(
            id="",
            domain=Refactoring.name,
            messages=(Message("user", asked),),
            tools=(Shown() if level == 1 else Files()).specs(),
            sandbox=SandboxSpec(files=_encoded(before)),
            limits=Limits(turns=2 + 2 * level, tokens=192 * level, turn_tokens=160 * level),
            artifacts=tuple(before),
            reference={
                "module": "m.py",
                "inputs": {name.format(**names): [_INPUTS[takes]] for name, takes in kind.inputs.items()},
                "goals": [
                    {"metric": metric, "most": most, "of": of.format(**names)} for metric, most, of in kind.goals
                ],
                "renamed": {old.format(**names): new.format(**names) for old, new in kind.renamed.items()},
                "adds": [name.format(**names) for name in kind.adds],
                "solution": after,
            },
        )

    return Draft(f"{number} {constants} {names['v']}", "\n".join([*before.values(), wish]), build)


def _encoded(files: Mapping[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in files.items()}
