"""3D parts: the model writes a Python script that makes one solid, of stated sizes at a stated place, and exports it.

`run` stores the script as part.py, runs it in the sandbox and shows what it says; a message without a call, such as
"done", ends the episode. Graded is the mesh that the script writes in a box of its own (`verifiers.geometry`). The box
has to have manifold3d, trimesh and, for those who prefer it, build123d (extra `cad`); its `stl.py` writes manifold3d's
solids.

Level 1: plates, blocks and bushes with holes. Level 2: flanged bushes, stepped shafts, rounded plates with pockets.
Level 3: brackets with a filled inner edge, open boxes with posts, bearing blocks.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from temper.core.protocols import Environment, Resources
from temper.core.task import Case, Limits, Message, SandboxSpec, Split, Task, ToolCall
from temper.domains.generated import LEVELS, Draft, stream
from temper.domains.solid_parts.families import FAMILIES, SLACK, Part
from temper.domains.solid_parts.scripts import manifold, mutations, right_forms
from temper.rollouts.environments import ToolEnvironment
from temper.rollouts.toolsets import ToolError, Toolset, tool
from temper.verifiers.audit.bench import Bench

_STL = """import numpy as np


def save(solid, path):
    mesh = solid.to_mesh()
    corners = mesh.vert_properties[mesh.tri_verts][:, :, :3]
    rows = np.zeros(len(corners), [("normal", "<3f4"), ("corners", "<(3,3)f4"), ("spare", "<u2")])
    rows["corners"] = corners
    with open(path, "wb") as file:
        file.write(bytes(80) + len(rows).to_bytes(4, "little") + rows.tobytes())
"""
SANDBOX = SandboxSpec(files={"stl.py": _STL.encode()}, memory=2 << 30, cpu_seconds=120.0)


def create(config: object = None) -> SolidParts:
    return SolidParts()


class SolidParts:
    """`core.protocols.Domain`."""

    name = "solid_parts"
    levels = LEVELS
    packages = ("manifold3d", "trimesh")  # that boxes and workers have to have

    def tasks(self, split: Split, level: int, seed: int = 0) -> Iterator[Task]:
        return stream(self.name, draw, split, level, seed)

    def environment(self, task: Task, resources: Resources) -> Environment:
        return ToolEnvironment(task, Workbench(), resources)

    def verifier(self, task: Task) -> tuple[str, Mapping[str, Any]]:
        return "geometry", {"preload": ["numpy", *self.packages]}

    def gold(self, task: Task) -> tuple[Message, ...]:
        call = ToolCall("run", {"script": task.reference["script"]})
        return (Message("assistant", calls=(call,)), Message("assistant", "done"))

    def cases(self, task: Task) -> Iterator[Case]:
        part = msgspec.convert(task.reference["drawn"], Part)
        for right, forms in ((True, right_forms(part)), (False, mutations(part))):
            for why, script in forms.items():
                yield Case(right=right, why=why, artifacts={"part.py": script.encode()})

    async def second_opinion(self, task: Task, case: Case, bench: Bench) -> bool | None:
        """The gold script is right, whatever its layout; one that does not compile or exports nothing is wrong."""
        script = case.artifacts.get("part.py", b"").decode("utf-8", "replace")
        try:
            tree = ast.parse(script)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
        called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
        names = {getattr(function, "attr", getattr(function, "id", "")) for function in called}
        if "part.stl" not in script or not names & {"save", "export", "export_stl", "export_mesh", "open"}:
            return False
        return True if ast.dump(tree) == ast.dump(ast.parse(task.reference["script"])) else None


class Script(Struct):
    text: str = ""


class Workbench(Toolset):
    """Python in the sandbox."""

    State = Script
    output_bytes = 600

    @tool
    async def run(self, script: str) -> str:
        """Store the script as part.py and run it."""
        self.state.text = script
        try:
            await self.sandbox.put("part.py", script.encode("utf-8", "replace"))
        except OSError as error:
            raise ToolError(f"part.py cannot be written: {error.strerror}") from None
        done = await self.sandbox.exec(["python3", "part.py"], seconds=self.seconds)
        if not done.ok:
            raise ToolError(f"the script ended with {done.cause} {done.code}: {done.text.strip()[-400:]}")
        try:
            size = len(await self.sandbox.get("part.stl"))
        except OSError:
            raise ToolError("the script wrote no part.stl") from None
        return f"{done.text.strip()}\npart.stl has {size} bytes".strip()

    def artifacts(self) -> dict[str, bytes]:
        return {"part.py": self.state.text.encode("utf-8", "replace")} if self.state.text else {}


def draw(rng: random.Random, level: int) -> Draft:
    part = rng.choice(FAMILIES[level])(rng)
    wish = "\n".join((*_HEAD, *part.says))

    def build(rng: random.Random) -> Task:
        reference = {
            "script": manifold(part.steps), "tolerance": SLACK, "volume": part.volume, "box": part.box,
            "genus": part.genus, "wall": part.wall, "features": part.features, "drawn": part,
        }  # fmt: skip
        return Task(
            id="",
            domain=SolidParts.name,
            messages=(Message("user", wish),),
            tools=Workbench().specs(),
            sandbox=SANDBOX,
            limits=Limits(turns=6, tokens=3072, turn_tokens=1536, tool_seconds=30.0),
            artifacts=("part.py",),
            reference=msgspec.to_builtins(reference),
        )

    return Draft("\n".join(part.says), wish, build)


_HEAD = (
    "Write a Python script that makes one solid and exports it as part.stl, in millimetres.",
    "build123d, trimesh and manifold3d can be used; `from stl import save; save(solid, 'part.stl')` writes a solid of "
    "manifold3d. Circles have 64 segments or more.",
)
