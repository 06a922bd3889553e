"""A tool-using episode is right when its end state is the expected one, collateral changes included.

Reference: {"state": {...}, "calls": [{"name", "arguments"}], "order": [[i, j], ...], "answer": "...", "only": false};
all but the state may be left out. `calls` are required ones; others may be made beside them unless `only` is true.
A call with {"name", "options": {parameter: [values]}} allows alternatives, by the schemas of `task.tools`
(`allowed`). `order` says that call i comes before call j, `answer` is compared as `exact` does. The environment
delivers `state.json` and `calls.json`: the executed calls in order, each {"name", "arguments"} and, where it failed,
"ok": false, which then does not count as made.

Doing nothing fails whenever the expected state is not the first one, or a call or an answer is required. Components:
state, arguments, order, answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.task import Task
from temper.verifiers import exact
from temper.verifiers.checks.forms import Found, equal
from temper.verifiers.grading import Given, Judgement, Plugin

_ABSENT = object()
_TYPES: dict[str, type] = {
    "string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict, "any": str,
}  # fmt: skip
_LOOSE = re.compile(r"[ ,./\-_*^]")


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seconds: float = 2.0


class Call(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] = {}
    options: dict[str, list[Any]] | None = None


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    state: dict[str, Any]
    calls: list[Call] = []
    order: list[tuple[int, int]] = []
    answer: str = ""
    only: bool = False


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    schemas = {tool.name: tool.parameters for tool in given.task.tools}
    expected = {**msgspec.to_builtins(reference), "schemas": schemas}
    gold = [msgspec.json.encode(expected["state"]), msgspec.json.encode([_one(call) for call in reference.calls])]
    made = [given.file(name) for name in ("state.json", "calls.json")]
    right, why, components = await given.pool.judge(
        f"{__name__}:check", (*made, expected), (*gold, expected), lambda found: found[0], settings.seconds,
    )  # fmt: skip
    if reference.answer:
        said, wanted = (exact.normal(text, exact.Config()) for text in (given.trace.answer, reference.answer))
        components = {**components, "answer": float(said == wanted)}
        right, why = right and said == wanted, why or "the final answer is not the expected one" * (said != wanted)
    return Judgement(float(right), why, components)


def _one(call: Call) -> dict[str, Any]:
    """A call that is right."""
    options = {name: values[-1] for name, values in (call.options or {}).items() if values[-1] != ""}
    return {"name": call.name, "arguments": call.arguments | options}


def _problem(reference: Reference, task: Task) -> str:
    """An empty expectation would pass by doing nothing, a cyclic one never."""
    if not (reference.state or reference.calls or reference.answer):
        return "expected a state, calls or an answer"
    if any(not 0 <= k < len(reference.calls) for pair in reference.order for k in pair):
        return f"'order' names calls outside 0..{len(reference.calls) - 1}"
    graph: TopologicalSorter[int] = TopologicalSorter()
    for i, j in reference.order:
        graph.add(j, i)
    try:
        graph.prepare()
    except CycleError as error:
        return f"'order' has a cycle: {error.args[1]}"
    return ""


def check(state: bytes, calls: bytes, expected: dict[str, Any]) -> Found:
    """Runs in a worker. Raises nothing for what the policy did: unreadable artifacts are wrong."""
    try:
        found_state, made = json.loads(state), json.loads(calls)
        made = [(call["name"], call["arguments"]) for call in made if call.get("ok", True)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Found(False, "state.json or calls.json cannot be read", {"state": 0.0})
    differences = list(differing(expected["state"], found_state))
    size = max(_leaves(expected["state"]), _leaves(found_state)) if differences else 1
    components = {"state": max(0.0, 1 - len(differences) / size)}
    whys = [f"the final state differs at {path}" for path in differences[:3]]
    places = assign(expected["calls"], expected["order"], made, expected["schemas"])
    if expected["only"] and len(made) > len(places):
        whys.append(f"{len(made)} calls were made, expected {len(places)}")
    if expected["calls"]:
        missing = [call["name"] for call, place in zip(expected["calls"], places, strict=True) if place is None]
        components["arguments"] = 1 - len(missing) / len(places)
        whys += [f"a call of {name} with the right arguments is missing" for name in missing[:3]]
    if expected["order"]:
        kept = [_before(places[i], places[j]) for i, j in expected["order"]]
        components["order"] = sum(kept) / len(kept)
        if components["order"] < 1 and components["arguments"] == 1:
            whys.append("calls were made in the wrong order")
    return Found(not whys, "; ".join(whys), components)


def differing(expected: Any, found: Any, path: str = "state") -> Iterator[str]:
    """Paths that differ, on either side: changes, omissions and collateral damage alike."""
    if type(expected) is type(found) and isinstance(expected, dict | list):
        if repr(expected) == repr(found):  # most of a large state, at C's speed
            return
        left, right = _items(expected), _items(found)
        for key in [*left, *(key for key in right if key not in left)]:
            yield from differing(left.get(key, _ABSENT), right.get(key, _ABSENT), f"{path}.{key}")
    elif expected is _ABSENT or found is _ABSENT or not equal(expected, found):
        yield path


def assign(
    wanted: list[dict[str, Any]], order: list[list[int]], made: list[Any], schemas: dict[str, Any]
) -> list[int | None]:
    """A place in `made` for each wanted call, each used once, in the partial order if there is any such choice.

    If there is none: places of as many calls as can be had in any order, for the count of arguments and of order.
    """
    fitting = [[at for at, call in enumerate(made) if _fits(call, one, schemas)] for one in wanted]
    places = _matched(fitting)
    if None in places or all(_before(places[i], places[j]) for i, j in order):
        return places
    found = _ordered(fitting, order, len(made))
    return places if found is None else [found[n] for n in range(len(wanted))]


def _matched(fitting: list[list[int]]) -> list[int | None]:
    """A largest matching, by augmenting paths."""
    holder: dict[int, int] = {}

    def seat(n: int, tried: set[int]) -> bool:
        for at in fitting[n]:
            if at not in tried:
                tried.add(at)
                if at not in holder or seat(holder[at], tried):
                    holder[at] = n
                    return True
        return False

    for n in range(len(fitting)):
        seat(n, set())
    place = {n: at for at, n in holder.items()}
    return [place.get(n) for n in range(len(fitting))]


def _ordered(fitting: list[list[int]], order: list[list[int]], made: int) -> dict[int, int] | None:
    """Places of all calls that keep the order. Made calls are read in turn, with every set that may be placed so far.

    A call that can stand for a wanted one is never better left unused, since a larger set can be completed in every way
    in which its parts can. So there are several sets only where a call could stand for one or another.
    """
    first = [{i for i, j in order if j == n} for n in range(len(fitting))]
    reached: dict[frozenset[int], dict[int, int]] = {frozenset(): {}}
    for at in range(made):
        grown: dict[frozenset[int], dict[int, int]] = {}
        for placed, places in reached.items():
            ready = [n for n, some in enumerate(fitting) if at in some and n not in placed and first[n] <= placed]
            for n in ready:
                grown.setdefault(placed | {n}, places | {n: at})
            if not ready:
                grown.setdefault(placed, places)
        reached = grown
    return reached.get(frozenset(range(len(fitting))))


def _fits(call: Any, wanted: dict[str, Any], schemas: dict[str, Any]) -> bool:
    name, arguments = call
    if name != wanted["name"]:
        return False
    if wanted["options"] is None:
        return equal(arguments, wanted["arguments"])
    return isinstance(arguments, dict) and allowed(arguments, wanted["options"], schemas.get(name, {}))


def _before(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a < b


def _leaves(value: Any) -> int:
    return sum(map(_leaves, _items(value).values())) or 1


def _items(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    return dict(enumerate(value)) if isinstance(value, list) else {}


def allowed(arguments: dict[str, Any], options: dict[str, list[Any]], schema: dict[str, Any]) -> bool:
    """Whether a call gives values that are allowed: the rule of BFCL's checker, over JSON schemas.

    `options` maps every parameter to the values that it may have; "" among them says that it may be left out, or be an
    empty list. Required parameters have to be there, and others than those of `options` must not. Types are as
    declared, an integer may stand for a number, and a value of another type counts only if the options have that type.
    Strings compare without capitals, spaces and , . / - _ * ^; so do those inside lists and objects, whose keys have
    options of their own.
    """
    properties = schema.get("properties", {})
    if any(name not in arguments for name in schema.get("required", ())):
        return False
    if any(name not in arguments and "" not in values for name, values in options.items()):
        return False
    return all(
        name in properties and name in options and _accepted(value, options[name], properties[name])
        for name, value in arguments.items()
    )


def _accepted(value: Any, options: list[Any], declared: dict[str, Any]) -> bool:
    kind = _TYPES.get(declared.get("type", "any"), str)
    items = _TYPES.get(declared.get("items", {}).get("type", "any"), str) if kind is list else None
    if kind is float and type(value) is int and value.bit_length() < 1000:
        value = float(value)
    given = _type(options)
    if type(value) is kind and _items_typed(value, options, items):
        other = given is not None and given is not kind
    elif given is not kind and type(value) is given:
        other = True  # such as the name of a variable where a number is declared
    else:
        return False
    if other:
        return value in options
    if kind is dict:
        return any(_entries(value, option) for option in options if option != "")
    if items is dict:
        return any(
            len(value) == len(option) and all(_entries(*pair) for pair in zip(value, option, strict=True))
            for option in options
            if isinstance(option, list)
        )
    if kind is list:
        options = [[] if option == "" else option for option in options]
    return _loose(value) in [_loose(option) for option in options if type(option) is kind or kind is not str]


def _items_typed(value: Any, options: list[Any], items: type | None) -> bool:
    """Every item of a list has the declared type, or that of the items of one option."""
    if items is None:
        return True
    return any(
        all(type(item) is items or type(item) is _type(option if isinstance(option, list) else []) for item in value)
        for option in options
    )


def _type(options: list[Any]) -> type | None:
    return next((type(option) for option in options if option != ""), None)


def _entries(value: Any, options: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(options, dict):
        return False
    return all(
        key in options and _loose(entry) in [_loose(option) for option in options[key]] for key, entry in value.items()
    ) and all(key in value or "" in entries for key, entries in options.items())


def _loose(value: Any) -> Any:
    if isinstance(value, list):
        return [_loose(item) if isinstance(item, str) else item for item in value]
    return _LOOSE.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


create = Plugin(__name__, Config, Reference, judge, _problem)
