"""Scripts that make a part: the gold one, the same by other libraries, and scripts with one thing wrong."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

from msgspec import structs

from temper.domains.solid_parts.families import Box, Filling, Part, Rod, Step


def manifold(steps: tuple[Step, ...], end: str = "save(body, 'part.stl')") -> str:
    lines = ["from manifold3d import CrossSection, JoinType, Manifold", "from stl import save", ""]
    for n, step in enumerate(steps):
        sign = "-" if step.cut else "+"
        lines.append(f"body = {_inmanifold(step)}" if n == 0 else f"body {sign}= {_inmanifold(step)}")
    return "\n".join([*lines, end, ""])


def _inmanifold(step: Step) -> str:
    match step:
        case Box(low, high, _, radius):
            size = [h - b for b, h in zip(low, high, strict=True)]
            if not radius:
                return f"Manifold.cube({size}).translate({list(low)})"
            inner = f"CrossSection.square([{size[0] - 2 * radius}, {size[1] - 2 * radius}])"
            at = [low[0] + radius, low[1] + radius, low[2]]
            return f"{inner}.offset({radius}, JoinType.Round, 2.0, 96).extrude({size[2]}).translate({at})"
        case Rod(start, axis, diameter, length):
            turn = {"x": ".rotate([0, 90, 0])", "y": ".rotate([-90, 0, 0])", "z": ""}[axis]
            return f"Manifold.cylinder({length}, {diameter / 2}, {diameter / 2}, 96){turn}.translate({list(start)})"
        case Filling(start, radius, length):
            x, y, z = start
            rod = f"Manifold.cylinder({length + 2}, {radius}, {radius}, 96).rotate([-90, 0, 0])"
            return (
                f"(Manifold.cube([{radius}, {length}, {radius}]).translate({[x, y, z]})"
                f" - {rod}.translate({[x + radius, y - 1, z + radius]}))"
            )


def _trimesh(steps: tuple[Step, ...]) -> str:
    lines = [
        "import trimesh",
        "from trimesh.boolean import difference, union",
        "from trimesh.creation import box, cylinder",
        "",
    ]
    for n, step in enumerate(steps):
        made = _in_trimesh(step)
        lines.append(f"body = {made}" if n == 0 else f"body = {'difference' if step.cut else 'union'}([body, {made}])")
    return "\n".join([*lines, "body.export('part.stl')", ""])


def _in_trimesh(step: Step) -> str:
    match step:
        case Box(low, high, _, 0.0):
            return f"box(bounds=[{low}, {high}])"
        case Box((x0, y0, z0), (x1, y1, z1), _, r):
            parts = [_rod((x, y, z0), (x, y, z1), r) for x in (x0 + r, x1 - r) for y in (y0 + r, y1 - r)]
            parts += [f"box(bounds=[{(x0 + r, y0, z0)}, {(x1 - r, y1, z1)}])"]
            parts += [f"box(bounds=[{(x0, y0 + r, z0)}, {(x1, y1 - r, z1)}])"]
            return f"union([{', '.join(parts)}])"
        case Rod(start, axis, diameter, length):
            end = tuple(c + length * (name == axis) for c, name in zip(start, "xyz", strict=True))
            return _rod(start, end, diameter / 2)
        case Filling((x, y, z), radius, length):
            rod = _rod((x + radius, y - 1, z + radius), (x + radius, y + length + 1, z + radius), radius)
            return f"difference([box(bounds=[{(x, y, z)}, {(x + radius, y + length, z + radius)}]), {rod}])"


def _rod(start: tuple[float, ...], end: tuple[float, ...], radius: float) -> str:
    return f"cylinder({radius}, segment=[{start}, {end}], sections=64)"


def _build123d(steps: tuple[Step, ...], name: str = "part.stl") -> str:
    lines = [
        "from build123d import *",
        "",
        "LOW = (Align.MIN, Align.MIN, Align.MIN)",
        "ROUND = (Align.CENTER, Align.CENTER, Align.MIN)",
        "",
    ]
    for n, step in enumerate(steps):
        sign = "-" if step.cut else "+"
        made = _in_build123d(step)
        if isinstance(step, Box) and step.radius:
            lines.append(f"plate = {made}")
            made = f"fillet(plate.edges().filter_by(Axis.Z), {step.radius})"
        lines.append(f"body = {made}" if n == 0 else f"body = body {sign} {made}")
    return "\n".join([*lines, f"export_stl(body, {name!r})", ""])


def _in_build123d(step: Step) -> str:
    match step:
        case Box(low, high):
            return f"Pos{low} * Box({', '.join(str(h - b) for b, h in zip(low, high, strict=True))}, align=LOW)"
        case Rod(start, axis, diameter, length):
            turn = {"x": " * Rot(0, 90, 0)", "y": " * Rot(-90, 0, 0)", "z": ""}[axis]
            return f"Pos{start}{turn} * Cylinder({diameter / 2}, {length}, align=ROUND)"
        case Filling((x, y, z), radius, length):
            rod = f"Rot(-90, 0, 0) * Cylinder({radius}, {length + 2}, align=ROUND)"
            block = f"Pos({x}, {y}, {z}) * Box({radius}, {length}, {radius}, align=LOW)"
            return f"({block} - Pos({x + radius}, {y - 1}, {z + radius}) * {rod})"


def right_forms(part: Part) -> dict[str, str]:
    """The same part by other means."""
    forms = {
        "manifold3d": manifold(part.steps),
        "trimesh": _trimesh(part.steps),
        "manifold3d, exported by trimesh": manifold(
            part.steps,
            "import trimesh\nmesh = body.to_mesh()\n"
            "trimesh.Trimesh(mesh.vert_properties[:, :3], mesh.tri_verts).export('part.stl')",
        ),
        "moved there and back": manifold(
            part.steps, "save(body.translate([5, 0, 0]).translate([-5, 0, 0]), 'part.stl')"
        ),
        "with output and a function": "def make():\n    "
        + manifold(part.steps, "return body").strip().replace("\n", "\n    ")
        + "\n\n\nbody = make()\nprint(body.volume())\nfrom stl import save\nsave(body, 'part.stl')\n",
    }
    if importlib.util.find_spec("build123d") is not None:  # boxes see what is installed here
        forms["build123d"] = _build123d(part.steps)
    return forms


def mutations(part: Part) -> dict[str, str]:
    """The part with one thing wrong."""
    steps = part.steps
    last = max(n for n, step in enumerate(steps) if step.cut)
    first = next(n for n, step in enumerate(steps) if step.cut)
    wrong = {
        "a cut left out": manifold(steps[:last] + steps[last + 1 :]),
        "another cut left out": manifold(steps[:first] + steps[first + 1 :]),
        "a cut added instead": manifold(
            (*steps[:first], structs.replace(steps[first], cut=False), *steps[first + 1 :])
        ),
        **{why: manifold(mutant) for why, mutant in _dimensions(steps, first)},
    }
    whole = manifold(steps, "{}")
    ends = {
        "inches": "save(body.scale([25.4, 25.4, 25.4]), 'part.stl')",
        "two percent larger": "save(body.scale([1.02, 1.02, 1.02]), 'part.stl')",
        "shifted by 5 mm": "save(body.translate([5, 0, 0]), 'part.stl')",
        "shifted by 0.6 mm": "save(body.translate([0, 0.6, 0]), 'part.stl')",
        "upside down": "save(body.rotate([0, 180, 0]), 'part.stl')",
        "axes changed": "save(body.rotate([0, 90, 0]), 'part.stl')",
        "two copies": "import numpy as np\n" + _RAW.format("np.concatenate([t, t])"),
        "a second body beside it": "save(body + Manifold.cube([2, 2, 2]).translate([200, 0, 0]), 'part.stl')",
        "inside out": _RAW.format("t[:, ::-1]"),
        "a triangle missing": _RAW.format("t[:-1]"),
        "a triangle turned": _RAW.format("np.concatenate([t[:-1], t[-1:, ::-1]])"),
        "a hidden void": _VOID,
        "no export": "",
        "an empty export": _WRITE.format("b''"),
        "a text as export": _WRITE.format("b'solid part\\nendsolid part\\n'"),
        "another file": "save(body, 'model.stl')",
        "an error after the export": "save(body, 'part.stl')\nraise SystemExit(3)",
        "not a number": _RAW.format("t").replace("corners = v[", "v[0] = np.nan\ncorners = v["),
        "a count without triangles": _WRITE.format("bytes(80) + b'\\xff' * 4 + bytes(50)"),
    }  # fmt: skip
    wrong |= {why: whole.replace("{}", end) for why, end in ends.items()}
    unique = {script: why for why, script in reversed(wrong.items())}
    return {why: script for script, why in reversed(unique.items())}


_RAW = """import numpy as np
mesh = body.to_mesh()
v, t = mesh.vert_properties[:, :3].copy(), mesh.tri_verts
corners = v[{}]
rows = np.zeros(len(corners), [("normal", "<3f4"), ("corners", "<(3,3)f4"), ("spare", "<u2")])
rows["corners"] = corners
with open("part.stl", "wb") as file:
    file.write(bytes(80) + len(rows).to_bytes(4, "little") + rows.tobytes())"""
_WRITE = "from pathlib import Path\nPath('part.stl').write_bytes({})"
_VOID = """import numpy as np
low, high = np.array(body.bounding_box()).reshape(2, 3)
for share in np.random.default_rng(0).uniform(0.05, 0.95, (4000, 3)):
    void = Manifold.cube([0.8, 0.8, 0.8], True).translate(low + share * (high - low))
    if (void - body).is_empty():
        break
save(body - void, 'part.stl')"""


def _dimensions(steps: tuple[Step, ...], first: int) -> Iterator[tuple[str, tuple[Step, ...]]]:
    """One size or place of one step, off by a millimetre."""

    def changed(n: int, **change: Any) -> tuple[Step, ...]:
        return (*steps[:n], structs.replace(steps[n], **change), *steps[n + 1 :])

    for n in dict.fromkeys((0, first, len(steps) - 1)):
        match steps[n]:
            case Box((x, y, z), (x1, y1, z1)):
                yield f"step {n}: 1 mm longer", changed(n, high=(x1 + 1, y1, z1))
                yield (
                    f"step {n}: 1 mm lower",
                    changed(n, **({"low": (x, y, z - 1)} if steps[n].cut else {"high": (x1, y1, z1 - 1)})),
                )
            case Rod((x, y, z), axis, diameter):
                yield f"step {n}: 1 mm wider", changed(n, diameter=diameter + 1)
                yield f"step {n}: 1 mm beside its place", changed(n, start=(x + (axis != "x"), y + (axis == "x"), z))
    rounded = next((n for n, step in enumerate(steps) if isinstance(step, Box) and step.radius), None)
    if rounded is not None:
        yield "edges not rounded", changed(rounded, radius=0.0)
    if filling := next((n for n, step in enumerate(steps) if isinstance(step, Filling)), None):
        yield "fillet left out", steps[:filling] + steps[filling + 1 :]
        yield "fillet of 2 mm more", changed(filling, radius=steps[filling].radius + 2)
