"""Tool orchestration: small simulated worlds (bank, stock room, home, calendar) that a request asks to change.

The right calls with the right arguments are needed, in the order that the request implies; often a call looks up what
the next one needs. Graded is the end state, collateral changes included, and the calls made. A message without a call,
such as "done", ends the episode.

Level 1: one world, a deed with at most one lookup. Level 2: two deeds with sums and conditions. Level 3: three deeds in
a given order, among the tools of all worlds. The simulators run in this process: they only see checked arguments.
"""

# ruff: noqa: E501  (tables with one entry a line)

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from temper.core.protocols import Environment, Resources
from temper.core.task import Case, Limits, Message, Split, Task, ToolCall
from temper.domains.generated import LEVELS, Draft, stream
from temper.rollouts.environments import ToolEnvironment
from temper.rollouts.toolsets import ToolError, Toolset, tool
from temper.verifiers.audit.bench import Bench


def create(config: object = None) -> Tools:
    return Tools()


class Tools:
    """`core.protocols.Domain`."""

    name = "tools"
    levels = LEVELS

    def tasks(self, split: Split, level: int, seed: int = 0) -> Iterator[Task]:
        return stream(self.name, draw, split, level, seed)

    def environment(self, task: Task, resources: Resources) -> Environment:
        return ToolEnvironment(task, WORLDS[task.start["world"]](Record(dict(task.start["facts"]))), resources)

    def verifier(self, task: Task) -> tuple[str, Mapping[str, Any]]:
        return "tools", {}

    def gold(self, task: Task) -> tuple[Message, ...]:
        """A lookup ends a message, as what follows depends on it."""
        turns: list[list[ToolCall]] = [[]]
        for call in task.reference["calls"]:
            turns[-1].append(ToolCall(call["name"], call["arguments"]))
            if call["name"] in LOOKUPS:
                turns.append([])
        return (*(Message("assistant", calls=tuple(calls)) for calls in turns), Message("assistant", "done"))

    def cases(self, task: Task) -> Iterator[Case]:
        """The calls with harmless ones among them and in other orders; and with one changed, left out or too many."""
        world, facts = task.start["world"], task.start["facts"]
        calls, order = task.reference["calls"], task.reference["order"]
        failed = {"name": "pay", "arguments": {"src": "nobody", "dst": "nobody", "n": 1}, "ok": False}
        looks = [call for call in calls if call["name"] in LOOKUPS]
        swaps = [(n, [*calls[:n], calls[n + 1], calls[n], *calls[n + 2 :]]) for n in range(len(calls) - 1)]
        forms = {"as the author made them": calls, "after a call that failed": [failed, *calls]}
        forms |= {"with a second look": [*looks, *calls], "with a last look": [*calls, *looks]} if looks else {}
        forms |= {f"calls {n} and {n + 1} swapped": made for n, made in swaps if [n, n + 1] not in _closure(order)}
        for why, made in forms.items():
            yield _case(True, why, world, facts, made)
        wrong = {"nothing was done": [], "announced only": [{**call, "ok": False} for call in calls]}
        wrong |= {f"call {n} was left out": [*calls[:n], *calls[n + 1 :]] for n in range(len(calls))}
        wrong |= {f"calls {n} and {n + 1} in the wrong order": made for n, made in swaps if [n, n + 1] in order}
        wrong |= {
            f"call {n} twice": [*calls[: n + 1], *calls[n:]] for n, call in enumerate(calls) if call["name"] in _ADDING
        }
        for n, call in enumerate(calls):
            for name, value in call["arguments"].items():
                other = value + 1 if isinstance(value, int) else _other(value)
                changed = {**call, "arguments": {**call["arguments"], name: other}}
                wrong[f"another {name} in call {n}"] = [*calls[:n], changed, *calls[n + 1 :]]
        for why, made in wrong.items():
            case = _case(False, why, world, facts, made)
            refused = why.endswith("twice") and b'"ok":false' in case.artifacts["calls.json"]
            if not refused:  # a world that refuses the second one stays as it should be
                yield case
        state = {**task.reference["state"], "extra": 1}
        yield Case(right=False, why="something more was changed", artifacts=_delivered(state, calls))

    async def second_opinion(self, task: Task, case: Case, bench: Bench) -> bool | None:
        """The gold answer's end, and its calls in its order. Other orders, and more lookups, are left open."""
        if not case.artifacts or json.loads(case.artifacts["state.json"]) != task.reference["state"]:
            return False
        calls = [call for call in json.loads(case.artifacts["calls.json"]) if call.get("ok", True)]
        made, gold = (
            [json.dumps([call["name"], call["arguments"]], sort_keys=True) for call in some]
            for some in (calls, task.reference["calls"])
        )
        return True if made == gold else False if Counter(gold) - Counter(made) else None


_ADDING = frozenset({"pay", "add", "take"})


def _case(right: bool, why: str, world: str, facts: dict[str, Any], calls: list[dict[str, Any]]) -> Case:
    """What the world delivers after these calls; one that it refuses has failed."""
    simulator = WORLDS[world](Record(dict(facts)))
    made = []
    for call in calls:
        ok = call.get("ok", True)
        try:
            if ok:
                getattr(simulator, call["name"])(**call["arguments"])
        except ToolError:
            ok = False
        made.append({**call, "ok": ok})
    return Case(right=right, why=why, artifacts=_delivered(simulator.state.facts, made))


def _delivered(state: Mapping[str, Any], calls: list[dict[str, Any]]) -> dict[str, bytes]:
    return {"state.json": msgspec.json.encode(state), "calls.json": msgspec.json.encode(calls)}


def _other(name: str) -> str:
    known = next(names for names in (PEOPLE, ITEMS, LAMPS, DAYS) if name in names)
    return known[(known.index(name) + 1) % len(known)]


def _closure(order: list[list[int]]) -> list[list[int]]:
    """All pairs that an order implies."""
    pairs = {tuple(pair) for pair in order}
    while more := {(a, d) for a, b in pairs for c, d in pairs if b == c} - pairs:
        pairs |= more
    return [list(pair) for pair in pairs]


class Record(Struct):
    """The facts of a world by name, and the calls that were made, as `verifiers.tools` reads them."""

    facts: dict[str, int | str]
    calls: list[dict[str, Any]] = field(default_factory=list)


class World(Toolset):
    """What the worlds share: facts by name, and a record of the calls."""

    State = Record

    async def call(self, call: ToolCall) -> str:
        output = await super().call(call)
        ok = not output.startswith("error:")
        self.state.calls.append({"name": call.name, "arguments": call.arguments, "ok": ok})
        return output

    def artifacts(self) -> dict[str, bytes]:
        state, calls = msgspec.json.encode(self.state.facts), msgspec.json.encode(self.state.calls)
        return {"state.json": state, "calls.json": calls}

    def number(self, name: str) -> int:
        value = self.state.facts.get(name)
        if not isinstance(value, int):
            raise ToolError(f"no {name}")
        return value

    def change(self, name: str, by: int) -> None:
        after = self.number(name) + by
        if after < 0:
            raise ToolError(f"only {self.number(name)} {name}")
        if after > MOST:
            raise ToolError(f"at most {MOST} {name}")
        self.state.facts[name] = after


class Bank(World):
    @tool
    def balance(self, who: str) -> int:
        """What someone has."""
        return self.number(who)

    @tool
    def pay(self, src: str, dst: str, n: int) -> None:
        """Move money."""
        self.number(dst)
        if n < 1:
            raise ToolError("n must be positive")
        self.change(src, -n)
        self.change(dst, n)


class Stock(World):
    @tool
    def count(self, item: str) -> int:
        """How many there are."""
        return self.number(item)

    @tool
    def add(self, item: str, n: int) -> None:
        """Put some in."""
        self.change(item, n)

    @tool
    def take(self, item: str, n: int) -> None:
        """Take some out."""
        self.change(item, -n)


class Home(World):
    @tool
    def level(self, lamp: str) -> int:
        """How bright a lamp is."""
        return self.number(lamp)

    @tool
    def dim(self, lamp: str, n: int) -> None:
        """Set a lamp."""
        self.change(lamp, n - self.number(lamp))

    @tool
    def heat(self, n: int) -> None:
        """Set the heating."""
        self.change("heat", n - self.number("heat"))


class Calendar(World):
    @tool
    def free(self, day: str) -> int:
        """The first free hour."""
        return next((h for h in HOURS if f"{day} {h}" not in self.state.facts), 0)

    @tool
    def book(self, day: str, hour: int, who: str) -> None:
        """Book an hour."""
        if day not in DAYS or hour not in HOURS or f"{day} {hour}" in self.state.facts:
            raise ToolError(f"{day} {hour} is not free")
        self.state.facts[f"{day} {hour}"] = who

    @tool
    def cancel(self, day: str, hour: int) -> None:
        """Free an hour."""
        if self.state.facts.pop(f"{day} {hour}", None) is None:
            raise ToolError(f"{day} {hour} is free")


class Everything(Bank, Stock, Home, Calendar):
    """All tools at once."""


WORLDS: dict[str, type[World]] = {kind.__name__: kind for kind in (Bank, Stock, Home, Calendar, Everything)}
LOOKUPS = frozenset({"balance", "count", "level", "free"})
PEOPLE = ("Ann", "Tom", "Ben", "Sam", "Kim", "Max", "Leo", "Eva", "Amy", "Dan")
ITEMS = ("pens", "cups", "keys", "bags", "hats", "pots", "nuts", "caps")
LAMPS = ("hall", "desk", "bed", "door", "bath", "roof")
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri")
HOURS = range(8, 18)
MOST = 10**9  # of anything: what a state can be saved with


class Deed(Struct, frozen=True):
    """A wish in words, what must be true for it, and the calls that fulfil it, in their order."""

    wish: str
    facts: dict[str, int | str]
    calls: tuple[tuple[str, dict[str, Any]], ...]


Pick = Callable[[int], list[Any]]  # so many names of a world that no other deed of the task uses


def _bank(rng: random.Random, pick: Pick, level: int) -> Deed:
    (a, b, c), n, has = pick(3), rng.randint(2, 49), rng.randint(2, 49)
    kinds = [
        Deed(f"{a} pays {b} {n}.", {}, (("pay", {"src": a, "dst": b, "n": n}),)),
        Deed(f"{a} gives {b} all.", {a: has}, (("balance", {"who": a}), ("pay", {"src": a, "dst": b, "n": has}))),
    ]
    if level == 1:
        return rng.choice(kinds)
    src, dst = (a, b) if has > n else (b, a)
    return rng.choice([
        Deed(f"{a} pays {b} what {c} has.", {c: has}, (("balance", {"who": c}), ("pay", {"src": a, "dst": b, "n": has}))),
        Deed(f"{b} pays {a} so much that {a} has {has + n}.", {a: has}, (("balance", {"who": a}), ("pay", {"src": b, "dst": a, "n": n}))),
        Deed(f"If {a} has over {n}, {a} pays {b} 2; else {b} pays {a} 2.", {a: has}, (("balance", {"who": a}), ("pay", {"src": src, "dst": dst, "n": 2}))),
        kinds[1],
    ])  # fmt: skip


def _stock(rng: random.Random, pick: Pick, level: int) -> Deed:
    (a, b), n, has = pick(2), rng.randint(2, 49), rng.randint(2, 49)
    kinds = [
        Deed(f"Add {n} {a}.", {}, (("add", {"item": a, "n": n}),)),
        Deed(f"Take {n} {a}.", {}, (("take", {"item": a, "n": n}),)),
        Deed(f"Add {n} {a}, take {has} {b}.", {}, (("add", {"item": a, "n": n}), ("take", {"item": b, "n": has}))),
        Deed(f"Take all {a}.", {a: has}, (("count", {"item": a}), ("take", {"item": a, "n": has}))),
        Deed(f"Double the {a}.", {a: has}, (("count", {"item": a}), ("add", {"item": a, "n": has}))),
    ]
    if level == 1:
        return rng.choice(kinds)
    change = ("take", {"item": a, "n": 2}) if has > n else ("add", {"item": a, "n": 2})
    return rng.choice([
        Deed(f"Add {a} until there are {has + n}.", {a: has}, (("count", {"item": a}), ("add", {"item": a, "n": n}))),
        Deed(f"If there are over {n} {a}, take 2; else add 2.", {a: has}, (("count", {"item": a}), change)),
        Deed(f"Add as many {b} as there are {a}.", {a: has}, (("count", {"item": a}), ("add", {"item": b, "n": has}))),
        kinds[2],
    ])  # fmt: skip


def _home(rng: random.Random, pick: Pick, level: int) -> Deed:
    (a, b), n, has = pick(2), *rng.sample(range(1, 99), 2)
    warm = rng.randint(15, 25)
    kinds = [
        Deed(f"Dim {a} to {n}.", {a: 99 - n}, (("dim", {"lamp": a, "n": n}),)),
        Deed(f"Dim {a} to {n}, heat to {warm}.", {a: 99 - n}, (("dim", {"lamp": a, "n": n}), ("heat", {"n": warm}))),
        Deed(f"Dim {a} like {b}.", {a: 99 - has, b: has}, (("level", {"lamp": b}), ("dim", {"lamp": a, "n": has}))),
    ]
    if level == 1:
        return rng.choice(kinds)
    dimmed = a if has > n else b
    return rng.choice([
        Deed(f"Make {a} {n} brighter.", {a: has}, (("level", {"lamp": a}), ("dim", {"lamp": a, "n": has + n}))),
        Deed(f"If {a} is over {n}, dim {a} to 0; else dim {b} to 0.", {a: has}, (("level", {"lamp": a}), ("dim", {"lamp": dimmed, "n": 0}))),
        kinds[2],
    ])  # fmt: skip


def _calendar(rng: random.Random, pick: Pick, level: int) -> Deed:
    (a, b), who, hour, later = pick(2), rng.choice(PEOPLE), rng.choice(HOURS), rng.choice(HOURS)
    kinds = [
        Deed(f"Book {a} {hour} for {who}.", {}, (("book", {"day": a, "hour": hour, "who": who}),)),
        Deed(f"Move {who} from {a} {hour} to {b} {later}.", {f"{a} {hour}": who},
             (("cancel", {"day": a, "hour": hour}), ("book", {"day": b, "hour": later, "who": who}))),
    ]  # fmt: skip
    busy: dict[str, int | str] = {f"{a} {h}": PEOPLE[h - 8] for h in HOURS if h < hour}
    first = (("free", {"day": a}), ("book", {"day": a, "hour": hour, "who": who}))
    kinds.append(Deed(f"Book {a} for {who}.", busy, first))
    if level == 1:
        return rng.choice(kinds)
    moved = (*first, ("cancel", {"day": b, "hour": later}))
    kinds.append(
        Deed(f"Move {who} from {b} {later} to the first free hour of {a}.", busy | {f"{b} {later}": who}, moved)
    )
    return rng.choice(kinds[1:])


_DEEDS = {"Bank": (_bank, PEOPLE), "Stock": (_stock, ITEMS), "Home": (_home, LAMPS), "Calendar": (_calendar, DAYS)}


def draw(rng: random.Random, level: int) -> Draft:
    names = rng.sample(list(_DEEDS), 3) if level == 3 else [rng.choice(list(_DEEDS))] * level
    unused = {name: rng.sample(known, len(known)) for name, (_, known) in _DEEDS.items()}
    deeds = []
    for name in names:
        make, _ = _DEEDS[name]
        deeds.append(make(rng, lambda n, name=name: [unused[name].pop() for _ in range(n)], level))
    wish = "\n".join(deed.wish for deed in deeds) + ("\nIn this order." if level == 3 else "")
    calls = [{"name": name, "arguments": arguments} for deed in deeds for name, arguments in deed.calls]
    identity = msgspec.json.encode(calls).decode()
    world = "Everything" if level == 3 else names[0]
    given = {name: value for deed in deeds for name, value in deed.facts.items()}

    def build(rng: random.Random) -> Task:
        facts = _facts(rng, names) | given
        return Task(
            id="",
            domain=Tools.name,
            messages=(Message("user", wish),),
            tools=WORLDS[world](Record({})).specs(),
            limits=Limits(turns=2 + 2 * level, tokens=120 * level, turn_tokens=88 * level),
            start={"world": world, "facts": facts},
            artifacts=("state.json", "calls.json"),
            reference={"state": _after(world, facts, calls), "calls": calls, "order": _order(deeds, level)},
        )

    return Draft(identity, f"{wish}\n{given}", build)


def _facts(rng: random.Random, names: list[str]) -> dict[str, int | str]:
    """A first state in which there is enough of everything."""
    facts: dict[str, int | str] = {"heat": rng.randint(5, 14)} if "Home" in names else {}
    for name in names:
        if name != "Calendar":
            facts |= {known: rng.randint(60, 99) for known in _DEEDS[name][1]}
    return facts


def _after(world: str, facts: dict[str, int | str], calls: list[dict[str, Any]]) -> dict[str, int | str]:
    simulator = WORLDS[world](Record(dict(facts)))
    for call in calls:
        getattr(simulator, call["name"])(**call["arguments"])
    return simulator.state.facts


def _order(deeds: list[Deed], level: int) -> list[list[int]]:
    """What needs an answer or a freed place comes after the call that gives it; at level 3 deeds follow each other."""
    order, at = [], 0
    for deed in deeds:
        last = at + len(deed.calls) - 1
        order += [[at + n, at + n + 1] for n, (name, _) in enumerate(deed.calls[:-1]) if name in LOOKUPS | {"cancel"}]
        if level == 3 and at:
            order.append([at - 1, last])
        at = last + 1
    return order
