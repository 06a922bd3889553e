"""Code repair as a closed loop: a small repository, edited and tested in the sandbox until its failing test passes.

Level 1: the prompt shows a function of one line with a wrong operator, constant, comparison or name. Level 2: a module
of three functions, to be read first. Level 3: the fault is in one of two modules, and edges count (empty lists,
boundaries, ties). `test` shows the first failure of the visible test; when it passes, the episode is over. Graded are
the delivered modules, by hidden cases in a fresh sandbox, so that a special case for the visible test fails.
"""

# ruff: noqa: E501, SIM905  (tables with one entry a line, words in one string)

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from temper.core.protocols import Environment, Resources
from temper.core.task import Case, Limits, Message, SandboxSpec, Split, Task, ToolCall
from temper.domains.generated import LEVELS, Draft, stream
from temper.rollouts.environments import ToolEnvironment
from temper.rollouts.toolsets import ToolError, Toolset, tool
from temper.verifiers.audit.bench import Bench
from temper.verifiers.audit.samples import differs

HIDDEN = 44  # cases of the reference, besides edges; each slip of the function fails at least one of them
_TEST = """import {module}

for args, want in {cases}:
    got = {module}.{function}(*args)
    if got != want:
        print("{function}(" + ", ".join(map(repr, args)) + f") gave {{got!r}}, want {{want!r}}")
        break
else:
    print("pass")
"""


def create(config: object = None) -> CodeRepair:
    return CodeRepair()


class CodeRepair:
    """`core.protocols.Domain`."""

    name = "code_repair"
    levels = LEVELS

    def tasks(self, split: Split, level: int, seed: int = 0) -> Iterator[Task]:
        return stream(self.name, draw, split, level, seed)

    def environment(self, task: Task, resources: Resources) -> Environment:
        return ToolEnvironment(task, OneModule() if task.level == 1 else Repository(), resources)

    def verifier(self, task: Task) -> tuple[str, Mapping[str, Any]]:
        return "code", {}

    def gold(self, task: Task) -> tuple[Message, ...]:
        assert task.sandbox is not None
        path, old, new = next(
            (path, *_changed(task.sandbox.files[path].decode(), text))
            for path, text in task.reference["solution"].items()
            if task.sandbox.files[path].decode() != text
        )
        test = ToolCall("test")
        if task.level == 1:
            old, new = old.removeprefix("return "), new.removeprefix("return ")
            return (Message("assistant", calls=(ToolCall("edit", {"old": old, "new": new}), test)),)
        edit = ToolCall("edit", {"path": path, "old": old, "new": new})
        return (
            Message("assistant", calls=(ToolCall("read", {"path": path}),)),
            Message("assistant", calls=(edit, test)),
        )

    def cases(self, task: Task) -> Iterator[Case]:
        """The solution in other layouts and with operands swapped; and with one token changed, where that shows."""
        assert task.sandbox is not None
        solution: dict[str, str] = task.reference["solution"]
        path = next(path for path, text in solution.items() if task.sandbox.files[path].decode() != text)
        right = solution[path]
        for why, text in {
            "as the author wrote it": right,
            "as ast writes it": ast.unparse(ast.parse(right)),
            "with operands swapped": ast.unparse(_Swapped().visit(ast.parse(right))),
            "with a comment": f"# repaired\n{right}",
            "indented by two": re.sub(r"^( +)", lambda found: found[1][: len(found[1]) // 2], right, flags=re.M),
            "with Windows line ends": right.replace("\n", "\r\n"),
            "through a lambda": re.sub(r"return (.+)\Z", r"return (lambda: \1)()", right.rstrip()),
        }.items():
            yield Case(right=True, why=why, artifacts=_encoded({**solution, path: text}))
        yield Case(
            right=False,
            why="nothing was changed",
            artifacts=_encoded({**solution, path: task.sandbox.files[path].decode()}),
        )
        called, args = (task.reference["cases"][0][key] for key in ("function", "args"))
        calls = [(called, probe) for probe in _probes(args, task.level)]
        for why, pattern, new in MUTATIONS:
            for found in re.finditer(pattern, right):
                text = right[: found.start()] + found.expand(new) + right[found.end() :]
                if _differ({**solution, path: text}, solution, calls):
                    yield Case(right=False, why=why, artifacts=_encoded({**solution, path: text}))
                    break

    async def second_opinion(self, task: Task, case: Case, bench: Bench) -> bool | None:
        """No difference in values on many more inputs than the hidden cases have."""
        reference = task.reference
        calls = [[c["function"], c.get("args", []), c.get("kwargs", {})] for c in reference["cases"]]
        return not await differs(bench, task, reference["solution"], case.artifacts, reference["module"], calls)


_MIRROR = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq}


class _Swapped(ast.NodeTransformer):
    """a + b as b + a, a * b as b * a, a < b as b > a."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Add | ast.Mult):
            node.left, node.right = node.right, node.left
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) == 1 and type(node.ops[0]) in _MIRROR:
            node.left, node.comparators = node.comparators[0], [node.left]
            node.ops = [_MIRROR[type(node.ops[0])]()]
        return node


MUTATIONS = (
    ("another comparison", r" > ", " >= "), ("another comparison", r" >= ", " > "), ("another comparison", r" < ", " <= "),
    ("another comparison", r" <= ", " < "), ("the opposite comparison", r" (?:>|>=) ", " < "), ("another operator", r" \+ ", " - "),
    ("another operator", r" - ", " + "), ("another operator", r" \* ", " + "), ("a larger constant", r"\b([0-9]+)\b", r"(\1 + 1)"),
    ("a smaller constant", r"\b([0-9]+)\b(?![\s\S]*\b[0-9])", r"(\1 - 1)"), ("the opposite", r"return (.+)\Z", r"return not (\1)"),
    ("text instead", r"return (.+)\s*\Z", r"return str(\1)"), ("nothing returned", r"return (?=.+\s*\Z)", ""),
    ("an early return", r"\):\n(    )(?![\s\S]*\):\n)", r"):\n\1return 0\n\1"), ("only for the shown arguments", r"return (.+)\Z", r"return 0 and (\1)"),
)  # fmt: skip


def _probes(args: list[Any], level: int) -> list[list[Any]]:
    """Many further argument lists of the kind of one; at level 3 in the list that `run` takes."""
    kind = args[0][0] if level == 3 else args[0]
    numbers, rng = range(-9, 21), random.Random(0)
    if isinstance(kind, str):
        return [[word] for word in _WORDS]
    if isinstance(kind, list):
        probes: list[Any] = [[n] * (1 + n % 2) for n in numbers]
        probes += [[rng.choice(numbers) for _ in range(rng.randint(1, 6))] for _ in range(400)]
        probes += [[]] if level > 1 else []
    elif len(args) == 2:
        return [[a, b] for a in numbers for b in numbers]
    else:
        probes = [*range(-9, 35)]
    return [[[probe]] if level == 3 else [probe] for probe in probes]


def _differ(one: Mapping[str, str], two: Mapping[str, str], calls: list[Any]) -> bool:
    """Whether two repositories of ours differ on these calls; one that does not compile is no mutation."""
    told = []
    for files in (one, two):
        scope: dict[str, Any] = {}
        try:
            for text in reversed(files.values()):  # parts.py before m.py, which imports from it
                exec(re.sub(r"^from parts .*", "", text), scope)
        except SyntaxError:
            return False
        told.append([_outcome(scope[name], args) for name, args in calls])
    return told[0] != told[1]


def _outcome(function: Any, args: list[Any]) -> str:
    try:
        return repr(function(*args))
    except Exception as error:  # of a mutation of our own
        return type(error).__name__


class Tested(Struct):
    passed: bool = False


class Repair(Toolset):
    """What both sets of tools share: the visible test, and access to the files."""

    State = Tested
    output_bytes = 1500

    @tool
    async def test(self) -> str:
        """Run the tests."""
        ended = await self.sandbox.exec(["python3", "-S", "-B", "test_m.py"], seconds=self.seconds)
        if ended.cause != "exited":
            raise ToolError(f"the tests were ended: {ended.cause}")
        last = ended.text.strip().rpartition("\n")[2]
        self.state.passed = ended.ok and last == "pass"
        return last[:160] or "the tests say nothing"

    @property
    def done(self) -> bool:
        return self.state.passed

    async def text(self, path: str) -> str:
        try:
            return (await self.sandbox.get(path)).decode("utf-8", "replace")
        except OSError:
            raise ToolError(f"no file {path}") from None

    async def replace(self, path: str, old: str, new: str) -> None:
        text = await self.text(path)
        found = text.count(old) if old else 0
        if found != 1:
            raise ToolError(f"old occurs {found} times, not once")
        try:
            await self.sandbox.put(path, text.replace(old, new).encode("utf-8", "replace"))
        except OSError as error:
            raise ToolError(f"{path} cannot be written: {error.strerror}") from None


class OneModule(Repair):
    """Tools for a repository whose one module, m.py, is shown in the prompt."""

    @tool
    async def edit(self, old: str, new: str) -> None:
        """Replace a piece of m.py that occurs once."""
        await self.replace("m.py", old, new)


class Repository(Repair):
    """Tools for a repository of several files."""

    @tool
    async def read(self, path: str) -> str:
        """Show a file."""
        return (await self.text(path)).strip()

    @tool
    async def edit(self, path: str, old: str, new: str) -> None:
        """Replace a piece of a file that occurs once."""
        await self.replace(path, old, new)


class Shape(Struct, frozen=True):
    """A function in words and as a body, and the ways to get it wrong: (piece, what stands there instead).

    `takes`: n (a whole number), nn (two), l (a list of them) or s (a word). {a}, {b} are the parameters, {k} a constant
    and {w} another one.
    """

    takes: str
    says: str
    body: str
    slips: tuple[tuple[str, str], ...]


def _swaps(takes: str, alternatives: Mapping[str, str], more: tuple[tuple[str, str], ...] = ()) -> tuple[Shape, ...]:
    """Shapes of one line, each of which may be mistaken for any other of them."""
    return tuple(
        Shape(takes, says, right, (*((right, wrong) for wrong in alternatives.values() if wrong != right), *more))
        for says, right in alternatives.items()
    )


_CONSTANT = (("{k}", "{w}"),)
ONE_LINE = (
    _swaps("n", {
        "{a} plus {k}": "{a} + {k}", "{a} minus {k}": "{a} - {k}", "{a} times {k}": "{a} * {k}",
        "{k} minus {a}": "{k} - {a}", "the remainder of {a} by {k}": "{a} % {k}",
    }, _CONSTANT * 2),
    _swaps("n", {
        "whether {a} is over {k}": "{a} > {k}", "whether {a} is under {k}": "{a} < {k}",
        "whether {a} is at least {k}": "{a} >= {k}", "whether {a} is at most {k}": "{a} <= {k}",
        "whether {a} is {k}": "{a} == {k}", "whether {a} is not {k}": "{a} != {k}",
    }, _CONSTANT * 2),
    _swaps("nn", {
        "{a} plus {b} plus {k}": "{a} + {b} + {k}", "{a} minus {b} plus {k}": "{a} - {b} + {k}",
        "{a} times {b} plus {k}": "{a} * {b} + {k}", "{a} times {b} minus {k}": "{a} * {b} - {k}",
    }, _CONSTANT),
    _swaps("nn", {
        "the larger of {a} and {b}": "max({a}, {b})", "the smaller of {a} and {b}": "min({a}, {b})",
        "{a} minus {b}": "{a} - {b}", "{b} minus {a}": "{b} - {a}", "{a} times {b}": "{a} * {b}",
    }),
    _swaps("l", {
        "the sum of {a} plus {k}": "sum({a}) + {k}", "the length of {a} plus {k}": "len({a}) + {k}",
        "the largest of {a} plus {k}": "max({a}) + {k}", "the smallest of {a} plus {k}": "min({a}) + {k}",
        "the first of {a} plus {k}": "{a}[0] + {k}", "the last of {a} plus {k}": "{a}[-1] + {k}",
    }, _CONSTANT),
    _swaps("s", {
        "{a} in capitals": "{a}.upper()", "{a} in small letters": "{a}.lower()",
        "{a} backwards": "{a}[::-1]", "the first letter of {a}": "{a}[0]", "the last letter of {a}": "{a}[-1]",
    }),
)  # fmt: skip
SEVERAL_LINES = (
    Shape("l", "the sum of the items of {a} over {k}", "total = 0\nfor item in {a}:\n    if item > {k}:\n        total += item\nreturn total",
          (("> {k}", "< {k}"), ("+= item", "= item"), ("{k}", "{w}"), ("+= item", "+= 1"))),
    Shape("l", "how many items of {a} are at most {k}", "count = 0\nfor item in {a}:\n    if item <= {k}:\n        count += 1\nreturn count",
          (("<=", ">="), ("<=", "<"), ("+= 1", "+= item"), ("{k}", "{w}"))),
    Shape("l", "the items of {a} times {k}, without those under 0", "result = []\nfor item in {a}:\n    if item >= 0:\n        result.append(item * {k})\nreturn result",
          ((">= 0", "> 0"), (">= 0", "< 0"), ("* {k}", "+ {k}"), ("{k}", "{w}"))),
    Shape("n", "{a}, but at least {k} and at most {k} + {w}", "if {a} < {k}:\n    return {k}\nif {a} > {k} + {w}:\n    return {k} + {w}\nreturn {a}",
          (("{a} < {k}", "{a} > {k}"), ("return {a}", "return {k}"), ("return {k} + {w}", "return {w}"))),
    Shape("n", "the sum of 1 to {a}, each times {k}", "total = 0\nfor i in range(1, {a} + 1):\n    total += i * {k}\nreturn total",
          (("{a} + 1", "{a}"), ("total = 0", "total = {k}"), ("i * {k}", "i + {k}"), ("{k}", "{w}"))),
    Shape("nn", "{a} minus {b} if {a} is larger, else {k}", "if {a} > {b}:\n    return {a} - {b}\nreturn {k}",
          (("{a} > {b}", "{a} < {b}"), ("{a} - {b}", "{b} - {a}"), ("{a} - {b}", "{a} + {b}"), ("{k}", "{w}"))),
)  # fmt: skip
EDGES = (
    Shape("l", "the largest item of {a}, {k} when it is empty", "if not {a}:\n    return {k}\nbest = {a}[0]\nfor item in {a}:\n    if item > best:\n        best = item\nreturn best",
          (("best = {a}[0]", "best = 0"), ("return {k}", "return {w}"), ("item > best", "item < best"))),
    Shape("l", "the mean of {a}, rounded down, {k} when it is empty", "if len({a}) == 0:\n    return {k}\nreturn sum({a}) // len({a})",
          (("== 0", "== 1"), ("return {k}", "return {w}"), ("// len({a})", "// 2"))),
    Shape("l", "the index of the first item of {a} at least {k}, -1 without one", "for i, item in enumerate({a}):\n    if item >= {k}:\n        return i\nreturn -1",
          ((">=", ">"), ("return -1", "return 0"), ("return i", "return item"), ("{k}", "{w}"))),
    Shape("l", "the items of {a} at even places, each at most {k}", "result = []\nfor i in range(0, len({a}), 2):\n    result.append(min({a}[i], {k}))\nreturn result",
          (("range(0", "range(1"), ("len({a})", "len({a}) - 1"), ("min", "max"), ("{k}", "{w}"))),
    Shape("n", "whether {a} is over {k} and a multiple of {w}", "return {a} > {k} and {a} % {w} == 0",
          (("> {k}", "< {k}"), ("and", "or"), ("== 0", "== 1"))),
)  # fmt: skip

_FUNCTIONS = "grow calc pick step move load rank score mark scale check shift part".split()
_PARAMETERS = {
    "n": ("x", "n", "v", "t"),
    "nn": ("a", "b", "x", "y"),
    "l": ("xs", "items", "nums"),
    "s": ("s", "word", "text"),
}
_WORDS = "Apple river Stone cloud Tiger music Lemon train Piano grass".split()


class Function(Struct, frozen=True):
    """A shape with its names and constants: how it should be, and the bodies that its slips would give."""

    name: str
    parameters: tuple[str, ...]
    says: str
    body: str
    slips: tuple[str, ...]
    constants: tuple[int, ...]

    def source(self, body: str, note: str = "") -> str:
        lines = [f"def {self.name}({', '.join(self.parameters)}):", *([f"# {note}"] if note else []), *body.split("\n")]
        return "\n    ".join(lines) + "\n"


def draw(rng: random.Random, level: int) -> Draft:
    shape = rng.choice(rng.choice(ONE_LINE) if level == 1 else (SEVERAL_LINES if level == 2 else EDGES))
    slip = rng.randrange(len(shape.slips))
    constants = rng.sample(range(2, 16), 2)
    if "{w}" not in shape.body + shape.slips[slip][1]:
        constants[1] = constants[0] + 1  # it only shows in hidden cases, which depend on what is asked
    beside = [s for s in SEVERAL_LINES if s is not shape]
    target, *others = (
        _function(rng, s, name, constants if s is shape else rng.sample(range(2, 16), 2))
        for s, name in zip((shape, *rng.sample(beside, 2)), rng.sample(_FUNCTIONS, 3), strict=True)
    )
    faulty = target.slips[slip]
    canonical = _function(random.Random(0), shape, "f", constants)
    identity = f"{canonical.body} <- {canonical.slips[slip]}"
    right, broken = (_files(target, body, others, level) for body in (target.body, faulty))

    def build(rng: random.Random) -> Task:
        module, called = ("m.py", "run") if level == 3 else ("m.py", target.name)
        visible, hidden = _cases(rng, target, faulty, shape.takes, level)
        test = _TEST.format(module="m", function=called, cases=visible)
        files = {**broken, "test_m.py": test}
        cases = [{"function": called, "args": list(args), "expect": want} for args, want in hidden]
        return Task(
            id="",
            domain=CodeRepair.name,
            messages=(Message("user", _prompt(target, broken, level)),),
            tools=(OneModule() if level == 1 else Repository()).specs(),
            sandbox=SandboxSpec(files={path: text.encode() for path, text in files.items()}),
            limits=Limits(turns=3 + level, tokens=128 * level, turn_tokens=80 * level),
            artifacts=tuple(broken),
            reference={"module": module, "cases": cases, "solution": right},
        )

    return Draft(identity, "\n".join(broken.values()) + target.says, build)


def _function(rng: random.Random, shape: Shape, name: str, constants: list[int]) -> Function:
    parameters = rng.sample(_PARAMETERS[shape.takes], 2)[: 2 if shape.takes == "nn" else 1]
    filling = {"a": parameters[0], "b": parameters[-1], "k": constants[0], "w": constants[1]}
    bodies = [shape.body, *(shape.body.replace(piece, other, 1) for piece, other in shape.slips)]
    if shape not in SEVERAL_LINES + EDGES:
        bodies = [f"return {body}" for body in bodies]
    says, body, *slips = (text.format(**filling) for text in (shape.says, *bodies))
    return Function(name, tuple(parameters), says, body, tuple(slips), tuple(constants))


def _files(target: Function, body: str, others: list[Function], level: int) -> dict[str, str]:
    """The modules of the repository, with `body` for the function in question."""
    if level == 1:
        return {"m.py": target.source(body)}
    functions = [other.source(other.body, other.says) for other in others]
    functions.insert(len(target.name) % 3, target.source(body, target.says))
    if level == 2:
        return {"m.py": "\n\n".join(functions)}
    names = ", ".join(target.parameters)
    loop = f"def run(rows):\n    return [{target.name}({names}) for {names} in rows]\n"
    return {"m.py": f"from parts import {target.name}\n\n\n{loop}", "parts.py": "\n\n".join(functions)}


def _prompt(target: Function, files: dict[str, str], level: int) -> str:
    if level == 1:
        return f"{files['m.py']}{target.name} should give {target.says}"
    where = "m.py" if level == 2 else "m.py, which uses parts.py,"
    return f"The tests of {where} fail. Repair it."


def _cases(
    rng: random.Random, target: Function, faulty: str, takes: str, level: int
) -> tuple[list[Any], list[tuple[tuple[Any, ...], Any]]]:
    """Visible cases, the first of which fails, and hidden ones that tell the right body from each of its slips."""
    inputs = _edges(takes, target.constants, level)
    told: dict[str, list[int]] = {slip: [] for slip in (faulty, *target.slips)}
    for _ in range(50):
        inputs += _inputs(rng, takes, level)
        wanted = _outcomes(target, target.body, inputs)
        for slip in told:
            told[slip] = [n for n, got in enumerate(_outcomes(target, slip, inputs)) if got != wanted[n]]
        if all(told.values()):
            break
    visible = [told[faulty][0], rng.randrange(len(inputs))]
    hidden = [rng.choice(found) for found in told.values()]
    edges = len(_edges(takes, target.constants, level))
    hidden += range(edges)
    hidden += rng.sample(range(edges, len(inputs)), min(HIDDEN, len(inputs) - edges))
    cases = [(inputs[n], wanted[n]) for n in (*visible, *hidden)]
    if level == 3:
        cases = [(([args[0]],), [want]) for args, want in cases]
    return cases[:2], cases[2:]


def _edges(takes: str, constants: tuple[int, ...], level: int) -> list[tuple[Any, ...]]:
    """Inputs at and beside the constants, and ties."""
    near = sorted({0, 1, *(k + by for k in constants for by in (-1, 0, 1))})
    if takes == "nn":
        return [(n, n) for n in near[:4]] + [(n, n + 1) for n in near[:2]] + [(n, 0) for n in near[-2:]]
    if takes == "l":
        return [*(([n],) for n in near), *(([n, n],) for n in near[::3]), *([] if level == 1 else [([],)])]
    return []


def _inputs(rng: random.Random, takes: str, level: int) -> list[tuple[Any, ...]]:
    """All numbers that matter and all words, in any order; of pairs and lists, some."""
    if takes == "n":
        return [(n,) for n in rng.sample(range(-9, 35), 44)]
    if takes == "s":
        return [(word,) for word in rng.sample(_WORDS, len(_WORDS))]
    if takes == "nn":
        return [(rng.randint(-9, 20), rng.randint(-9, 20)) for _ in range(100)]
    shortest = 1 if level == 1 else 0
    return [([rng.randint(-9, 20) for _ in range(rng.randint(shortest, 6))],) for _ in range(100)]


def _outcomes(target: Function, body: str, inputs: list[tuple[Any, ...]]) -> list[Any]:
    """What a body of our own gives; the name of the error where it raises."""
    scope: dict[str, Any] = {}
    exec(target.source(body), scope)
    outcomes = []
    for args in inputs:
        try:
            outcomes.append(scope[target.name](*args))
        except (IndexError, ValueError, ZeroDivisionError, NameError) as error:
            outcomes.append(type(error).__name__)
    return outcomes


def _encoded(files: Mapping[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in files.items()}


def _changed(broken: str, right: str) -> tuple[str, str]:
    """The line that differs, as it is and as it should be, with as many lines before it as make it occur once."""
    before, after = broken.split("\n"), right.split("\n")
    at = next(n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new)
    for start in range(at, -1, -1):
        old, new = ("\n".join(lines[start : at + 1]).strip() for lines in (before, after))
        if broken.count(old) == 1:
            break
    return old, new
