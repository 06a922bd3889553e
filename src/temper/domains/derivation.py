"""Derivations: equations, systems, inequalities and arguments, solved in steps that each name what they follow from.

Level 1: a linear equation. Level 2: two equations, or an inequality with a change of sign. Level 3: a quadratic
equation with a condition, or an argument over propositions. The verifier checks every step, so that a right result
behind a wrong step is wrong.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from temper.core.task import Limits, Message, Task
from temper.domains.generated import Draft
from temper.domains.written import Answers, Written

NAME = "derivation"
_FORM = (
    "One step a line, such as `2. x = 4 [from 1]`; what is given ends in [given]. Cite at most two steps; "
    "use every step."
)

Line = tuple[str, tuple[int, ...]]  # statement, the steps that it follows from; () for what is given
Problem = tuple[str, list[Line], list[str]]  # what to do, the gold chain, its propositions


def create(config: object = None) -> Written:
    return Written(NAME, "derivation", draw, lambda task: task.reference["solution"], right, wrong, second, ("z3",))


def draw(rng: random.Random, level: int) -> Draft:
    ask, lines, propositions = rng.choice(_KINDS[level])(rng)
    given = [statement for statement, cites in lines if not cites]
    prompt = f"{ask}\nGiven: {'; '.join(given)}\n{_FORM}"
    reference = {
        "given": given,
        "goal": lines[-1][0],
        "solution": written(lines),
        "propositions": propositions,
    }

    def build(rng: random.Random) -> Task:
        tokens = 80 * (level + 1)
        return Task(
            id="",
            domain=NAME,
            messages=(Message("user", prompt),),
            limits=Limits(turns=1, tokens=tokens, turn_tokens=tokens),
            reference=reference,
        )

    # What is derived, whichever way round the givens were put.
    return Draft("; ".join(statement for statement, cites in lines if cites), prompt, build)


def written(lines: Sequence[Line]) -> str:
    return "\n".join(
        f"{n}. {statement} [{'from ' + ', '.join(map(str, cites)) if cites else 'given'}]"
        for n, (statement, cites) in enumerate(lines, 1)
    )


def _linear(rng: random.Random) -> Problem:
    a, x, b = rng.randint(2, 12), rng.randint(-15, 15), rng.randint(1, 40)
    c = a * x + b
    first = rng.choice([f"{a}*x + {b} = {c}", f"{c} = {b} + {a}*x"])
    return "Solve for x.", [(first, ()), (f"{a}*x = {a * x}", (1,)), (f"x = {x}", (2,))], []


def _both_sides(rng: random.Random) -> Problem:
    a, x, b = rng.randint(6, 12), rng.randint(-9, 9), rng.randint(1, 20)
    c = rng.randint(2, a - 2)
    d = (a - c) * x + b
    lines: list[Line] = [
        (f"{a}*x + {b} = {c}*x + {d}", ()),
        (f"{a - c}*x + {b} = {d}", (1,)),
        (f"{a - c}*x = {d - b}", (2,)),
        (f"x = {x}", (3,)),
    ]
    return "Solve for x.", lines, []


def _system(rng: random.Random) -> Problem:
    x, y, a, b = rng.randint(-9, 9), rng.randint(-9, 9), rng.randint(2, 6), rng.randint(2, 9)
    c, d = y - a * x, x + b * y
    lines: list[Line] = [
        (f"y = {a}*x + {c}", ()),
        (f"x + {b}*y = {d}", ()),
        (f"x + {b}*({a}*x + {c}) = {d}", (1, 2)),
        (f"{1 + a * b}*x = {d - b * c}", (3,)),
        (f"x = {x}", (4,)),
        (f"x = {x} and y = {y}", (5, 1)),
    ]
    return "Solve for x and y; end with `x = ... and y = ...`.", lines, []


def _inequality(rng: random.Random) -> Problem:
    a, x, b = rng.randint(2, 12), rng.randint(-15, 15), rng.randint(1, 40)
    sign, other = rng.choice([("<", ">"), (">", "<"), ("<=", ">="), (">=", "<=")])
    lines: list[Line] = [
        (f"{b} - {a}*x {sign} {b - a * x}", ()),
        (f"-{a}*x {sign} {-a * x}", (1,)),
        (f"x {other} {x}", (2,)),
    ]
    return "Solve for x.", lines, []


def _quadratic(rng: random.Random) -> Problem:
    r, s = rng.sample([n for n in range(-12, 13) if n], 2)
    low, high = sorted((r, s))
    between = rng.randint(low, high - 1)
    keep, condition = rng.choice([(high, f"x > {between}"), (low, f"x <= {between}")])
    lines: list[Line] = [
        (f"x^2 + {-(r + s)}*x + {r * s} = 0", ()),
        (condition, ()),
        (f"(x - {low})*(x - {high}) = 0".replace("- -", "+ "), (1,)),
        (f"x = {low} or x = {high}", (3,)),
        (f"x = {keep}", (4, 2)),
    ]
    return "Solve for x.", lines, []


def _argument(rng: random.Random) -> Problem:
    """A chain of implications, one of them used backwards, that begins with a choice of two."""
    p, q, *chain = rng.sample("abcdefghkmnpqrstuvw", rng.randint(5, 7))
    steps = [p, *chain]
    given = [f"{p} or {q}", f"not {q}", *(f"{a} -> {b}" for a, b in pairwise(steps))]
    if rng.random() < 0.5:  # by contraposition
        n = rng.randrange(2, len(given))
        a, b = given[n].split(" -> ")
        given[n] = f"not {b} -> not {a}"
    order = rng.sample(range(len(given)), len(given))
    place = {n: order.index(n) + 1 for n in range(len(given))}
    lines: list[Line] = [(given[n], ()) for n in order]
    lines.append((p, (place[0], place[1])))
    for n, proposition in enumerate(chain):
        lines.append((proposition, (len(lines), place[n + 2])))
    return f"Show {chain[-1]}.", lines, sorted([p, q, *chain])


_KINDS: dict[int, tuple[Callable[[random.Random], Problem], ...]] = {
    1: (_linear, _both_sides),
    2: (_system, _inequality),
    3: (_quadratic, _argument),
}


def right(task: Task) -> Answers:
    solution = task.reference["solution"]
    yield "brackets behind the numbers", re.sub(r"^(\d+)\.", r"\1)", solution, flags=re.M)
    yield "blank lines", solution.replace("\n", "\n\n")
    yield "steps called steps", re.sub(r"from (\d+), (\d+)", r"from steps \1 and \2", solution)
    yield (
        "other numbers of steps",
        re.sub(r"^\d+|(?<=from )\d+|(?<=, )\d+(?=.*\]$)", lambda n: str(int(n[0]) * 10), solution, flags=re.M),
    )
    if not task.reference["propositions"]:
        yield "no sign for products", re.sub(r"(\d)\*(?=[x(])", r"\1", solution)
        yield "a first multiple", re.sub(r"^2\. (\S+) = (-?\d+) \[", _doubled, solution, flags=re.M)


def _doubled(found: re.Match[str]) -> str:
    return f"2. 2*({found[1]}) = {2 * int(found[2])} ["


def wrong(task: Task) -> Answers:
    lines = task.reference["solution"].split("\n")
    derived = [n for n, line in enumerate(lines) if "[from" in line]
    for n in derived:
        statement, _, reason = lines[n].rpartition(" [")
        number = re.search(r"\d+(?=\D*$)", statement.partition(". ")[2])
        head = statement.partition(". ")[0] + ". "
        body = statement.removeprefix(head)
        changed = f"{body[: number.start()]}{int(number[0]) + 1}{body[number.end() :]}" if number else f"not {body}"
        yield f"step {n + 1} is wrong", "\n".join([*lines[:n], f"{head}{changed} [{reason}", *lines[n + 1 :]])
    first, last = derived[0], derived[-1]
    yield (
        "a circle",
        "\n".join([*lines[:first], re.sub(r"from \d+", f"from {last + 1}", lines[first]), *lines[first + 1 :]]),
    )
    yield "a step is missing", "\n".join([*lines[:first], *lines[first + 1 :]]) if first != last else ""
    yield "the goal as a given", re.sub(r"\[from.*", "[given]", lines[last])
    yield "no reasons", re.sub(r" \[.*\]", "", task.reference["solution"])
    yield "the last step is missing", "\n".join(lines[:last])
    yield "an unused step", "\n".join([*lines[:last], f"90. 1 = 1 [from {first + 1}]", lines[last]])
    if len(task.reference["given"]) > 2:
        everything = ", ".join(str(n + 1) for n in range(len(lines)) if n not in derived)
        yield "one leap", "\n".join([*lines[:first], re.sub(r"\[from.*", f"[from {everything}]", lines[last])])


def second(task: Task, answer: str) -> bool | None:
    """The gold chain to the letter is right, and so is no chain that ends in anything but the goal."""
    lines, gold = (
        [" ".join(line.split()) for line in text.strip().split("\n")] for text in (answer, task.reference["solution"])
    )
    if lines == gold:
        return True
    said = re.sub(r"^\S+ | \[.*\]$", "", lines[-1])
    solved = {*re.findall(r"[\w-]+", task.reference["goal"])} <= {*re.findall(r"[\w-]+", said)}
    return None if solved and "[from" in lines[-1] else False
