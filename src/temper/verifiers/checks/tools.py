"""The state that a tool-using episode left behind, and the calls it made, against what was expected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from temper.verifiers.checks.calls import allowed
from temper.verifiers.checks.forms import equal

_ABSENT = object()


def check(state: bytes, calls: bytes, expected: dict[str, Any]) -> tuple[bool, str, dict[str, float]]:
    """(right, why not, components). Raises nothing for what the policy did: unreadable artifacts are wrong."""
    try:
        found_state, made = json.loads(state), json.loads(calls)
        made = [(call["name"], call["arguments"]) for call in made if call.get("ok", True)]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False, "state.json or calls.json cannot be read", {"state": 0.0}
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
    return not whys, "; ".join(whys), components


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
    """A place in `made` for each wanted call, each used once, the earliest that the partial order allows.

    Where calls are matched by equality, taking the earliest is optimal. A call that can only be had out of order gets
    that place, for the count of arguments and of order.
    """
    places: list[int | None] = [None] * len(wanted)
    for n in _sorted(len(wanted), order):
        free = [at for at, call in enumerate(made) if at not in places and _fits(call, wanted[n], schemas)]
        after = max((places[i] or 0 for i, j in order if j == n and places[i] is not None), default=-1)
        places[n] = next((at for at in free if at > after), free[0] if free else None)
    return places


def _fits(call: Any, wanted: dict[str, Any], schemas: dict[str, Any]) -> bool:
    name, arguments = call
    if name != wanted["name"]:
        return False
    if wanted["options"] is None:
        return equal(arguments, wanted["arguments"])
    return isinstance(arguments, dict) and allowed(arguments, wanted["options"], schemas.get(name, {}))


def _sorted(n: int, order: list[list[int]]) -> list[int]:
    """A topological order of 0..n-1; the reference was checked to have no cycle."""
    done: list[int] = []
    while len(done) < n:
        ready = [k for k in range(n) if k not in done and all(i in done for i, j in order if j == k)]
        done += ready or [k for k in range(n) if k not in done]
    return done


def _before(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a < b


def _leaves(value: Any) -> int:
    return sum(map(_leaves, _items(value).values())) or 1


def _items(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    return dict(enumerate(value)) if isinstance(value, list) else {}
