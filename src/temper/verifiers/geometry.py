"""A script that makes a part: it runs in a fresh sandbox, and the mesh that it writes is the expected part (`checks`).

Reference: {"script": the gold script, "export": "part.stl", ...}. The policy delivers one artifact, the script, which
runs as part.py. Both scripts run in boxes of their own, the gold one once a task; the export is read back by our code
only, a STEP file after a third box has turned it into a mesh. The boxes need the packages that scripts import: the
local backend shows a virtual environment that `paths` names, an image brings its own.

Right is: one closed body (and `cavities`), facing outwards, with the gold part's genus, box, centre of mass and volume,
sharing `overlap` of the volume where it stands, no smooth face further away than `tolerance`, every feature there, no
wall below `wall`. The task may state volume, box and genus, which then have to be the gold part's.
Components: runs, loads, closed, overlap, features; for wrong parts silhouette and depth by camera. Needs the extra
`temper-rl[cad]`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.util
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from temper.core.blame import FaultError
from temper.core.errors import MissingError
from temper.core.protocols import SandboxBackend
from temper.core.task import SandboxSpec, Task
from temper.core.trace import Trace
from temper.verifiers import boxes
from temper.verifiers.grading import Grader, Judgement, delivered, fingerprint, source
from temper.verifiers.pool import Pool

_CHECK, _VIEWS, _STEP = (f"temper.verifiers.checks.{part}" for part in ("solids", "views", "step"))
_PARTS = (__name__, boxes.__name__, _CHECK, _VIEWS, _STEP)
_LIBRARIES = ("manifold3d", "trimesh")
_OUTPUT = 24 << 20  # bytes that a script may print, the export in base64 included
_RUN = """import base64, sys
sys.path.insert(0, "")
sys.argv = ["part.py"]
try:
    exec(compile(open("part.py", "rb").read(), "part.py", "exec"), {"__name__": "__main__"})
except SystemExit as end:
    if end.code:
        raise
print("\\n" + base64.b64encode(open(%r, "rb").read(16 << 20)).decode())
"""
_KEPT = 256  # gold meshes


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`seconds`: of a script; `check_seconds`: for reading and comparing what it wrote."""

    seconds: float = 30.0
    check_seconds: float = 20.0
    python: str = "python3"  # the interpreter inside the sandbox
    preload: tuple[str, ...] = ()  # packages of the box that most scripts import, so that they start warm


class Feature(Struct, frozen=True, forbid_unknown_fields=True):
    """Points that have to be in material, and points that must not be."""

    name: str
    solid: list[tuple[float, float, float]] = []
    empty: list[tuple[float, float, float]] = []


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    """Millimetres. 0, [] and None: not asked for, or as in the gold part."""

    script: str
    export: str = "part.stl"
    tolerance: float = 0.25
    overlap: float = 0.97
    cavities: int = 0
    wall: float = 0.0
    volume: float = 0.0
    box: list[tuple[float, float, float]] = []
    genus: int | None = None
    features: list[Feature] = []
    drawn: Any = None  # the domain's own, not read here


def create(config: Config | None, pool: Pool, sandboxes: SandboxBackend) -> Grader:
    for package in _LIBRARIES:
        if importlib.util.find_spec(package) is None:
            raise MissingError(f"checking parts needs {package}: pip install 'temper-rl[cad]'")
    settings = config or Config()
    golds: dict[str, bytes] = {}

    async def judge(task: Task, trace: Trace, artifacts: Mapping[str, bytes], reference: Reference) -> Judgement:
        if len(task.artifacts) != 1 or not reference.script.strip():
            raise FaultError("reference-missing", "verifiers.geometry", "expected a gold script, and one artifact")
        script = delivered(artifacts, task.artifacts[0])
        spec = task.sandbox or SandboxSpec()
        key = hashlib.sha256(msgspec.json.encode((spec, reference.script, reference.export))).hexdigest()
        if key not in golds:  # first of all: a box that cannot make the gold part cannot judge another
            golds[key] = await _gold(sandboxes, settings, spec, reference)
            if len(golds) > _KEPT:
                del golds[next(iter(golds))]
        gold = golds[key]
        mesh, why = await _made(sandboxes, settings, spec, script, reference.export)
        if mesh is None:
            return Judgement(0.0, why, {"runs": 0.0})
        kind = "stl" if _is_step(reference.export) else reference.export.rpartition(".")[2]
        wanted = msgspec.to_builtins(structs.replace(reference, script="", drawn=None))
        kind_of, why, components = await pool.judge(
            f"{_CHECK}:check", (mesh, gold, kind, wanted), (gold, gold, kind, wanted), lambda f: f[0] == "right",
            settings.check_seconds,
        )  # fmt: skip
        if kind_of == "gold-fails":
            raise FaultError("gold-fails", "verifiers.geometry", why)
        return Judgement(float(kind_of == "right"), why, {"runs": 1.0, **components})

    return Grader("geometry", fingerprint(settings, *_PARTS, libraries=_LIBRARIES), Reference, judge)


async def _gold(sandboxes: SandboxBackend, settings: Config, spec: SandboxSpec, reference: Reference) -> bytes:
    try:
        gold, why = await _made(sandboxes, settings, spec, reference.script.encode(), reference.export)
    except FaultError as error:
        if error.fault.ruling.training != "floor":
            raise
        gold, why = None, error.fault.detail
    if gold is None:
        hint = "; does the box have the packages (`paths`, or an image)?" if "ModuleNotFound" in why else ""
        raise FaultError("environment-broken", "verifiers.geometry", f"the gold part cannot be made: {why}{hint}")
    return gold


async def _made(
    sandboxes: SandboxBackend, settings: Config, spec: SandboxSpec, script: bytes, export: str
) -> tuple[bytes | None, str]:
    """The mesh that a script writes, or why there is none. Raises FaultError for limits and lost boxes."""
    files = {**spec.files, "part.py": script}
    mesh, why = await _written(sandboxes, settings, structs.replace(spec, files=files), export)
    if mesh is not None and _is_step(export):
        files = {"part.py": source(_STEP).encode(), "part.step": mesh}
        mesh, why = await _written(sandboxes, settings, structs.replace(spec, files=files), "part.stl")
        why = f"{export} does not import: {why}"
    return mesh, why


async def _written(
    sandboxes: SandboxBackend, settings: Config, spec: SandboxSpec, export: str
) -> tuple[bytes | None, str]:
    interpreter = boxes.Interpreter(python=settings.python, preload=("base64", *settings.preload))
    done = await boxes.run(
        sandboxes, structs.replace(spec, output=_OUTPUT), _RUN % export, interpreter, seconds=settings.seconds,
        where="verifiers.geometry",
    )  # fmt: skip
    if not done.ok:
        last = done.text.strip().rpartition("\n")[2]
        return None, f"the script ended with {done.cause} {done.code}: {last[:300]}"
    with contextlib.suppress(ValueError):
        if mesh := base64.b64decode(done.stdout.strip().rpartition(b"\n")[2], validate=True):
            return mesh, ""
    return None, f"{export} is empty, or the script ended before it could be read"


def _is_step(name: str) -> bool:
    return name.lower().endswith((".step", ".stp"))


def hole(name: str, at: Any, axis: str, diameter: float, depth: float, *, through: bool, slack: float) -> Feature:
    """Probes of a hole that begins at `at` and goes along `axis` ("x", "-x", "y", ...): open inside, a wall around it.

    A hole that is not through has a floor. `slack`: how far sizes may be off.
    """
    along, across = _axes(axis)
    ring = [
        (1, 0),
        (0.7071, 0.7071),
        (0, 1),
        (-0.7071, 0.7071),
        (-1, 0),
        (-0.7071, -0.7071),
        (0, -1),
        (0.7071, -0.7071),
    ]

    def at_radius(radius: float, deep: float) -> list[tuple[float, float, float]]:
        return [_sum(at, (along, deep), (across[0], radius * u), (across[1], radius * v)) for u, v in ring]

    depths = [slack, depth / 2, depth - slack]
    empty = [point for deep in depths for point in at_radius(diameter / 2 - slack, deep)]
    solid = at_radius(diameter / 2 + slack, depth / 2)
    if not through:
        solid += [_sum(at, (along, depth + slack))]
    return Feature(name, solid, empty)


def fillet(
    name: str, corner: Any, axis: str, inward: Any, radius: float, length: float, *, inner: bool = False, slack: float
) -> Feature:
    """Probes of a rounded edge that begins at `corner` and runs along `axis`, at half its length.

    `inward` has a 1 or -1 for each of the two other axes and leads from the edge to the rounding's centre: into the
    material, or, where an inner edge is filled, out of it.
    """
    along, _ = _axes(axis)
    middle = _sum(corner, (along, length / 2), (inward, radius))
    diagonal = [-c / 2**0.5 for c in inward]
    near, far = ([_sum(middle, (diagonal, radius + by))] for by in (-slack, slack))
    return Feature(name, far, near) if inner else Feature(name, near, far)


def _axes(axis: str) -> tuple[list[float], list[list[float]]]:
    sign = -1.0 if axis.startswith("-") else 1.0
    units = {name: [float(k == n) for k in range(3)] for n, name in enumerate("xyz")}
    along = [sign * c for c in units[axis[-1]]]
    return along, [unit for name, unit in units.items() if name != axis[-1]]


def _sum(start: Any, *steps: tuple[Any, float]) -> tuple[float, float, float]:
    x, y, z = (start[k] + sum(way[k] * length for way, length in steps) for k in range(3))
    return (x, y, z)
