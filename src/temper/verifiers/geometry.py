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
from typing import Any

import msgspec
from msgspec import Struct, structs

from temper.core.blame import FaultError
from temper.core.task import SandboxSpec, Task
from temper.verifiers import boxes
from temper.verifiers.grading import Given, Judgement, Plugin, source

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

Mesh = tuple[bytes | None, str]  # or why there is none


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


async def judge(given: Given, reference: Reference, settings: Config) -> Judgement:
    script, spec, golds = given.file(given.task.artifacts[0]), given.task.sandbox or SandboxSpec(), given.state
    key = hashlib.sha256(msgspec.json.encode((spec, reference.script, reference.export))).hexdigest()
    if key not in golds:  # first of all: a box that cannot make the gold part cannot judge another
        golds[key] = await _gold(given, settings, spec, reference)
        if len(golds) > _KEPT:
            del golds[next(iter(golds))]
    gold = golds[key]
    mesh, why = await _made(given, settings, spec, script, reference.export)
    if mesh is None:
        return Judgement(0.0, why, {"runs": 0.0})
    kind = "stl" if _is_step(reference.export) else reference.export.rpartition(".")[2]
    wanted = msgspec.to_builtins(structs.replace(reference, script="", drawn=None))
    found, why, components = await given.pool.judge(
        "temper.verifiers.checks.solids:check",
        (mesh, gold, kind, wanted), (gold, gold, kind, wanted), lambda f: f[0] == "right", settings.check_seconds,
    )  # fmt: skip
    if found == "gold-fails":
        raise FaultError("gold-fails", "verifiers.geometry", why)
    return Judgement(float(found == "right"), why, {"runs": 1.0, **components})


def _problem(reference: Reference, task: Task) -> str:
    sound = len(task.artifacts) == 1 and reference.script.strip()
    return "" if sound else "expected a gold script, and one artifact"


async def _gold(given: Given, settings: Config, spec: SandboxSpec, reference: Reference) -> bytes:
    try:
        gold, why = await _made(given, settings, spec, reference.script.encode(), reference.export)
    except FaultError as error:
        if error.fault.ruling.training != "floor":
            raise
        gold, why = None, error.fault.detail
    if gold is None:
        hint = "; does the box have the packages (`paths`, or an image)?" if "ModuleNotFound" in why else ""
        raise FaultError("environment-broken", "verifiers.geometry", f"the gold part cannot be made: {why}{hint}")
    return gold


async def _made(given: Given, settings: Config, spec: SandboxSpec, script: bytes, export: str) -> Mesh:
    """The mesh that a script writes, or why there is none. Raises FaultError for limits and lost boxes."""
    files = {**spec.files, "part.py": script}
    mesh, why = await _written(given, settings, structs.replace(spec, files=files), export)
    if mesh is not None and _is_step(export):
        files = {"part.py": source("temper.verifiers.checks.step").encode(), "part.step": mesh}
        mesh, why = await _written(given, settings, structs.replace(spec, files=files), "part.stl")
        why = f"{export} does not import: {why}"
    return mesh, why


async def _written(given: Given, settings: Config, spec: SandboxSpec, export: str) -> Mesh:
    interpreter = boxes.Interpreter(python=settings.python, preload=("base64", *settings.preload))
    done = await boxes.run(
        given.sandboxes, structs.replace(spec, output=_OUTPUT), _RUN % export, interpreter, seconds=settings.seconds,
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


create = Plugin(
    __name__, Config, Reference, judge, _problem, lambda _: ("manifold3d", "trimesh"), "cad",
    prepare=lambda _: dict[str, bytes](),  # gold meshes by what made them
)  # fmt: skip
