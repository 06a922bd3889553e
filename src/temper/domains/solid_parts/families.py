"""The families of parts: solids that are added and taken away, one after another, with what is known about the result.

Volume, box and genus are worked out here from the sizes, without any geometry library, so that the gold scripts are
checked too.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from msgspec import Struct, structs

from temper.domains.solid_parts.probes import fillet, hole
from temper.verifiers.geometry import Feature

SLACK = 0.25  # mm that faces may be off

Point = tuple[float, float, float]


class Box(Struct, frozen=True, tag=True):
    """From corner to corner; `radius` rounds the upright edges."""

    low: Point
    high: Point
    cut: bool = False
    radius: float = 0.0


class Rod(Struct, frozen=True, tag=True):
    """A cylinder from `start` on along "x", "y" or "z"."""

    start: Point
    axis: str
    diameter: float
    length: float
    cut: bool = False


class Filling(Struct, frozen=True, tag=True):
    """What fills an inner edge along y with a concave rounding: the edge is at `start`, open towards +x and +z."""

    start: Point
    radius: float
    length: float
    cut: bool = False


Step = Box | Rod | Filling


class Part(Struct, frozen=True):
    """How a part is made, in words and in steps, and what is known about it without making it."""

    says: tuple[str, ...]
    steps: tuple[Step, ...]
    features: tuple[Feature, ...]
    volume: float
    box: tuple[Point, Point]
    genus: int
    wall: float = 0.0


def _plate(rng: random.Random) -> Part:
    w, d, t = rng.randrange(40, 101, 2), rng.randrange(34, 61, 2), rng.randint(3, 12)
    size = rng.choice((3, 4, 5, 6, 8))
    x, y = rng.randrange(size + 2, w // 2 - size), rng.randrange(size + 1, d // 2 - size + 2)
    places = rng.choice(([(x, 0), (-x, 0)], [(x, y), (-x, -y)], [(x, y), (x, -y), (-x, y), (-x, -y)], [(x, y)]))
    says = (
        f"A plate {w} (x) by {d} (y) by {t} (z), centred on the z axis, its lower face on z = 0.",
        f"Through holes along z, diameter {size}, at (x, y) = {', '.join(map(str, places))}.",
    )
    return _drilled(says, Box((-w / 2, -d / 2, 0), (w / 2, d / 2, t)), places, size, t, w * d * t)


def _drilled(
    says: tuple[str, ...], body: Box, places: list[Any], size: float, t: float, volume: float,
    more: tuple[Feature, ...] = (),
) -> Part:  # fmt: skip
    """A plate on z = 0 with through holes."""
    drills = tuple(Rod((x, y, -1), "z", size, t + 2, cut=True) for x, y in places)
    holes = tuple(_hole(f"the hole at ({x}, {y})", (x, y, 0), "z", size, t) for x, y in places)
    left = volume - len(places) * math.pi * size**2 / 4 * t
    return Part(says, (body, *drills), (*holes, *more), left, (body.low, body.high), len(places))


def _hole(name: str, at: Point, axis: str, size: float, depth: float, through: bool = True) -> Feature:
    return hole(name, at, axis, size, depth, through=through, slack=SLACK)


def _block(rng: random.Random) -> Part:
    w, d, h = (rng.randrange(20, 61, 2) for _ in range(3))
    size, deep = rng.randrange(4, min(w, d) // 2), rng.randrange(4, h - 3)
    x, y = rng.randint(0, w // 2 - size), rng.randint(0, d // 2 - size)
    says = (
        f"A block with corners (0, 0, 0) and ({w}, {d}, {h}).",
        f"A blind hole from the top face down, diameter {size}, {deep} deep, flat at its end, axis at "
        f"(x, y) = ({w // 2 + x}, {d // 2 - y}).",
    )
    at = (w // 2 + x, d // 2 - y, h)
    body, drill = Box((0, 0, 0), (w, d, h)), Rod((at[0], at[1], h - deep), "z", size, deep + 1, cut=True)
    feature = _hole("the blind hole", at, "-z", size, deep, through=False)
    return Part(says, (body, drill), (feature,), w * d * h - math.pi * size**2 / 4 * deep, (body.low, body.high), 0)


def _bush(rng: random.Random) -> Part:
    outer, length = rng.randrange(16, 61, 2), rng.randint(10, 80)
    bore = rng.randrange(6, outer - 5)
    x, y, z = (rng.randrange(-20, 21, 5) for _ in range(3))
    says = (
        f"A bush along z: outer diameter {outer}, bore {bore} right through, length {length}.",
        f"The centre of its lower end is at ({x}, {y}, {z}).",
    )
    steps = (Rod((x, y, z), "z", outer, length), Rod((x, y, z - 1), "z", bore, length + 2, cut=True))
    low, high = (x - outer / 2, y - outer / 2, z), (x + outer / 2, y + outer / 2, z + length)
    volume = math.pi * (outer**2 - bore**2) / 4 * length
    return Part(says, steps, (_hole("the bore", (x, y, z), "z", bore, length),), volume, (low, high), 1)


def _flange(rng: random.Random) -> Part:
    tube, length, thick = rng.randrange(16, 41, 2), rng.randint(20, 60), rng.randint(4, 10)
    bore, size, n = rng.randrange(8, tube - 5), rng.choice((4, 5, 6)), rng.choice((3, 4, 6))
    circle = tube + 2 * size + rng.randrange(4, 13, 2)
    wide = circle + 2 * size + rng.randrange(4, 11, 2)
    places = [
        (round(circle / 2 * math.cos(2 * math.pi * k / n), 4), round(circle / 2 * math.sin(2 * math.pi * k / n), 4))
        for k in range(n)
    ]
    says = (
        f"A flanged bush along z: a flange of diameter {wide} from z = 0 to z = {thick}, on it a tube of outer "
        f"diameter {tube} up to z = {length}; a bore of diameter {bore} right through both.",
        f"{n} through holes of diameter {size} in the flange, evenly on a circle of diameter {circle} around the z "
        "axis, the first on the positive x axis.",
    )
    drills = tuple(Rod((x, y, -1), "z", size, thick + 2, cut=True) for x, y in places)
    steps = (
        Rod((0, 0, 0), "z", wide, thick), Rod((0, 0, 0), "z", tube, length),
        Rod((0, 0, -1), "z", bore, length + 2, cut=True), *drills,
    )  # fmt: skip
    holes = [_hole(f"flange hole {k + 1}", (x, y, 0), "z", size, thick) for k, (x, y) in enumerate(places)]
    volume = math.pi / 4 * (wide**2 * thick + tube**2 * (length - thick) - bore**2 * length - n * size**2 * thick)
    box = ((-wide / 2, -wide / 2, 0), (wide / 2, wide / 2, length))
    return Part(says, steps, (_hole("the bore", (0, 0, 0), "z", bore, length), *holes), volume, box, n + 1)


def _shaft(rng: random.Random) -> Part:
    sizes = sorted(rng.sample(range(12, 51, 2), 3), reverse=rng.random() < 0.5)
    lengths = [rng.randrange(10, 41) for _ in sizes]
    bore, deep = rng.randrange(4, min(sizes) - 5), rng.randrange(6, lengths[0] + 5)
    starts = [0, lengths[0], lengths[0] + lengths[1]]
    steps_said = ", ".join(f"diameter {s} for {n} mm" for s, n in zip(sizes, lengths, strict=True))
    says = (
        f"A stepped shaft along x that begins at the origin and goes to +x: {steps_said}.",
        f"A blind hole of diameter {bore} from the end at x = 0, on the axis, {deep} deep, flat at its end.",
    )
    rods = tuple(Rod((x, 0, 0), "x", s, n) for x, s, n in zip(starts, sizes, lengths, strict=True))
    features = [_hole("the blind hole", (0, 0, 0), "x", bore, deep, through=False)]
    for k in (1, 2):  # just beside a shoulder, at the larger radius, and a little outside of it
        wide, way = max(sizes[k - 1], sizes[k]), -1 if sizes[k - 1] > sizes[k] else 1
        edge = [(starts[k] + way * side * SLACK, wide / 2 - SLACK, 0.0) for side in (1, -1)]
        features.append(Feature(f"the shoulder at x = {starts[k]}", edge[:1], edge[1:]))
    volume = math.pi / 4 * (sum(s**2 * n for s, n in zip(sizes, lengths, strict=True)) - bore**2 * deep)
    half = max(sizes) / 2
    drill = Rod((-1, 0, 0), "x", bore, deep + 1, cut=True)
    box = ((0, -half, -half), (sum(lengths), half, half))
    return Part(says, (*rods, drill), tuple(features), volume, box, 0)


def _rounded(rng: random.Random) -> Part:
    w, d, t, r = rng.randrange(50, 111, 2), rng.randrange(40, 81, 2), rng.randint(6, 14), rng.randint(3, 10)
    size, inset = rng.choice((3, 4, 5)), rng.randint(6, 9)
    places = [(sx * (w // 2 - inset), sy * (d // 2 - inset)) for sx in (1, -1) for sy in (1, -1)]
    pw, pd, deep = rng.randrange(8, w - 38, 2), rng.randrange(6, d - 30, 2), rng.randint(2, t - 2)
    says = (
        f"A plate {w} (x) by {d} (y) by {t} (z), centred on the z axis, its lower face on z = 0; its four upright "
        f"edges are rounded with radius {r}.",
        f"Four through holes along z, diameter {size}, at (x, y) = {', '.join(map(str, places))}.",
        f"In the middle of the top face a rectangular pocket {pw} (x) by {pd} (y), {deep} deep, with sharp corners.",
    )
    edge = fillet("the rounded edges", (-w / 2, -d / 2, 0), "z", (1, 1, 0), r, t, slack=SLACK)
    floor = Feature("the pocket", [(pw / 2 - 1, 0, t - deep - SLACK)], [(pw / 2 - 1, 0, t - deep + SLACK)])
    body = Box((-w / 2, -d / 2, 0), (w / 2, d / 2, t), radius=r)
    volume = (w * d - (4 - math.pi) * r**2) * t - pw * pd * deep
    part = _drilled(says, body, places, size, t, volume, (edge, floor))
    pocket = Box((-pw / 2, -pd / 2, t - deep), (pw / 2, pd / 2, t + 1), cut=True)
    return structs.replace(part, steps=(*part.steps, pocket))


def _bracket(rng: random.Random) -> Part:
    w, d, h, t = rng.randrange(40, 81, 2), rng.randrange(24, 51, 2), rng.randrange(40, 71, 2), rng.randint(4, 8)
    r, low, up = rng.randint(3, 8), rng.choice((4, 5, 6)), rng.choice((5, 6, 7))
    x, z, y = (
        rng.randrange(w // 2 + 4, w - low - 2),
        rng.randrange(h // 2 + 4, h - up - 2),
        rng.randrange(7, d // 2 - 3),
    )
    says = (
        f"An angle bracket. Base: from (0, 0, 0) to ({w}, {d}, {t}). Upright: from (0, 0, 0) to ({t}, {d}, {h}).",
        f"The inner edge between them is filled with a fillet of radius {r} over its whole length.",
        f"In the base two through holes along z, diameter {low}, at (x, y) = ({x}, {y}) and ({x}, {d - y}).",
        f"In the upright one through hole along x, diameter {up}, at (y, z) = ({d // 2}, {z}).",
    )
    steps = (
        Box((0, 0, 0), (w, d, t)), Box((0, 0, 0), (t, d, h)), Filling((t, 0, t), r, d),
        Rod((x, y, -1), "z", low, t + 2, cut=True), Rod((x, d - y, -1), "z", low, t + 2, cut=True),
        Rod((-1, d // 2, z), "x", up, t + 2, cut=True),
    )  # fmt: skip
    features = (
        fillet("the fillet", (t, 0, t), "y", (1, 0, 1), r, d, inner=True, slack=SLACK),
        _hole("the first hole in the base", (x, y, 0), "z", low, t),
        _hole("the second hole in the base", (x, d - y, 0), "z", low, t),
        _hole("the hole in the upright", (0, d // 2, z), "x", up, t),
    )
    volume = d * (w * t + h * t - t * t + (1 - math.pi / 4) * r**2) - math.pi / 4 * t * (2 * low**2 + up**2)
    return Part(says, steps, features, volume, ((0, 0, 0), (w, d, h)), 3)


def _case(rng: random.Random) -> Part:
    w, d, h = rng.randrange(50, 101, 2), rng.randrange(40, 81, 2), rng.randrange(20, 41, 2)
    t, post, size = rng.choice((2, 2.5, 3)), rng.choice((6, 7, 8)), rng.choice((2, 2.5, 3))
    inset, tall = rng.randint(9, 12), rng.randrange(10, h - 6)
    deep = rng.randrange(5, tall - 3)
    places = [(x, y) for x in (inset, w - inset) for y in (inset, d - inset)]
    says = (
        f"A box that is open at the top: outside from (0, 0, 0) to ({w}, {d}, {h}), walls and floor {t} thick.",
        f"Inside on the floor four round posts of diameter {post} up to z = {tall}, at (x, y) = "
        f"{', '.join(map(str, places))}.",
        f"In each post a blind hole from its top, on its axis, diameter {size}, {deep} deep, flat at its end.",
    )
    steps: list[Step] = [Box((0, 0, 0), (w, d, h)), Box((t, t, t), (w - t, d - t, h + 1), cut=True)]
    steps += [Rod((x, y, t / 2), "z", post, tall - t / 2) for x, y in places]
    steps += [Rod((x, y, tall - deep), "z", size, deep + 1, cut=True) for x, y in places]
    features = [
        _hole(f"the hole in post {k}", (x, y, tall), "-z", size, deep, False) for k, (x, y) in enumerate(places)
    ]
    volume = w * d * h - (w - 2 * t) * (d - 2 * t) * (h - t)
    volume += 4 * math.pi / 4 * (post**2 * (tall - t) - size**2 * deep)
    return Part(says, tuple(steps), tuple(features), volume, ((0, 0, 0), (w, d, h)), 0, wall=min(t, (post - size) / 2))


def _bearing(rng: random.Random) -> Part:
    w, d, t, r = rng.randrange(80, 121, 2), rng.randrange(30, 51, 2), rng.randint(6, 12), rng.randint(4, 8)
    wide, h = rng.randrange(30, 45, 2), rng.randrange(40, 61, 2)
    bore, size, deep = rng.randrange(10, 17), rng.choice((5, 6, 7)), rng.randrange(3, d // 2 - 4)
    step = bore + rng.randrange(4, 9, 2)
    z, x, y = t + (h - t) // 2, w // 2 - 10, d // 2 - 9
    places = [(sx * x, sy * y) for sx in (1, -1) for sy in (1, -1)]
    says = (
        f"A bearing block. Base: {w} (x) by {d} (y), from z = 0 to z = {t}, centred on the z axis, its four upright "
        f"edges rounded with radius {r}; four through holes along z, diameter {size}, at (x, y) = "
        f"{', '.join(map(str, places))}.",
        f"On the base a block {wide} (x) by {d} (y) up to z = {h}, centred on the z axis.",
        f"A bore of diameter {bore} right through the block along y, its axis at x = 0, z = {z}, with a counterbore of "
        f"diameter {step}, {deep} deep, from the side at y = {-d // 2}.",
    )
    base = Box((-w / 2, -d / 2, 0), (w / 2, d / 2, t), radius=r)
    part = _drilled(says, base, places, size, t, (w * d - (4 - math.pi) * r**2) * t)
    steps = (
        base, Box((-wide / 2, -d / 2, 0), (wide / 2, d / 2, h)), *part.steps[1:],
        Rod((0, -d / 2 - 1, z), "y", bore, d + 2, cut=True), Rod((0, -d / 2 - 1, z), "y", step, deep + 1, cut=True),
    )  # fmt: skip
    features = (
        *part.features,
        _hole("the bore", (0, -d / 2 + deep, z), "y", bore, d - deep),
        _hole("the counterbore", (0, -d / 2, z), "y", step, deep),
        fillet("the rounded edges", (-w / 2, -d / 2, 0), "z", (1, 1, 0), r, t, slack=SLACK),
    )
    volume = part.volume + wide * d * (h - t) - math.pi / 4 * (bore**2 * (d - deep) + step**2 * deep)
    return Part(says, steps, features, volume, ((-w / 2, -d / 2, 0), (w / 2, d / 2, h)), 5)


FAMILIES: dict[int, tuple[Callable[[random.Random], Part], ...]] = {
    1: (_plate, _block, _bush),
    2: (_flange, _shaft, _rounded),
    3: (_bracket, _case, _bearing),
}
