"""Meshes of parts. Closed forms give the expected measures; the flaws are those that the usual measures overlook.

A Chamfer distance between normalised point clouds gives 0.000 for a part 25.4 times too large or 5 mm away, and cannot
tell a missing hole, inverted normals, a hidden void or a doubled shell from the noise of its sampling.
"""

from __future__ import annotations

import asyncio
import io
import math
import struct
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from temper.core.task import SandboxSpec
from temper.domains.solid_parts import probes
from temper.sandboxes import local
from temper.verifiers import geometry
from temper.verifiers.checks import solids, views

manifold3d = pytest.importorskip("manifold3d", reason="geometry needs the extra cad")
trimesh = pytest.importorskip("trimesh", reason="geometry needs the extra cad")
Manifold = manifold3d.Manifold

KINDS = ("stl", "obj", "off", "ply", "glb")
OUTSIDE = Path(__file__).parents[4] / "shared" / "data"


def solid_of(body) -> solids.Solid:
    mesh = body.to_mesh()
    return solids.merged(np.float64(mesh.vert_properties[:, :3]), np.int64(mesh.tri_verts))


def stl(solid: solids.Solid) -> bytes:
    return trimesh.Trimesh(solid.vertices, solid.faces, process=False).export(file_type="stl")


def plate(hole: float = 5.0, length: float = 60.0, x: float = 20.0, segments: int = 64):
    """60 x 40 x 6 with a hole, and a blind hole of 8 mm, 3 mm deep."""
    body = Manifold.cube([length, 40, 6]).translate([-30, -20, 0])
    if hole:
        body -= Manifold.cylinder(8, hole / 2, hole / 2, segments).translate([x, 5, -1])
    return body - Manifold.cylinder(4, 4, 4, segments).translate([-15, 0, 3])


WANTED = geometry.Reference(
    script="",
    volume=60 * 40 * 6 - math.pi * 2.5**2 * 6 - math.pi * 16 * 3,
    box=[(-30, -20, 0), (30, 20, 6)],
    genus=1,
    wall=2.5,
    features=[
        probes.hole("the hole", (20, 5, 0), "z", 5, 6, through=True, slack=0.25),
        probes.hole("the blind hole", (-15, 0, 6), "-z", 8, 3, through=False, slack=0.25),
    ],
)


def judged(solid: solids.Solid, wanted: geometry.Reference = WANTED, gold: solids.Solid | None = None):
    gold = solid_of(plate()) if gold is None else gold
    return solids.check(stl(solid), stl(gold), "stl", msgspec.to_builtins(wanted))


def joined(*parts: solids.Solid) -> solids.Solid:
    offsets = np.cumsum([0, *(len(part.vertices) for part in parts)])
    faces = [part.faces + offset for part, offset in zip(parts, offsets, strict=False)]
    return solids.Solid(np.concatenate([part.vertices for part in parts]), np.concatenate(faces))


def scaled(solid: solids.Solid, by: float, shift: float = 0.0) -> solids.Solid:
    return solids.Solid(solid.vertices * by + [shift, 0, 0], solid.faces)


GOOD = solid_of(plate())
VOID = solid_of(Manifold.cube([1, 1, 1]).translate([5, -15, 2]))
FLAWS = {
    "25.4 times too large": (scaled(GOOD, 25.4), "bounding box"),
    "5 mm away": (scaled(GOOD, 1, 5), "bounding box"),
    "0.5 mm away": (scaled(GOOD, 1, 0.5), "bounding box"),
    "the hole is missing": (solid_of(plate(0)), "0 holes go through"),
    "the hole is 1 mm wider": (solid_of(plate(6)), "the hole: material is missing"),
    "the hole is 1 mm narrower": (solid_of(plate(4)), "the hole: material is where none should be"),
    "the hole is 1 mm aside": (solid_of(plate(x=21)), "the hole"),
    "2 mm longer": (solid_of(plate(length=62)), "bounding box"),
    "inverted normals": (solids.Solid(GOOD.vertices, GOOD.faces[:, ::-1]), "face inwards"),
    "a hidden void": (joined(GOOD, solids.Solid(VOID.vertices, VOID.faces[:, ::-1])), "1 closed cavities"),
    "a shell twice": (joined(GOOD, scaled(GOOD, 1, 1e-3)), "2 bodies"),
    "the same shell twice": (joined(GOOD, GOOD), "not watertight"),
    "a body inside": (joined(GOOD, VOID), "2 bodies"),
    "overlapping bodies": (joined(GOOD, scaled(VOID, 1, 23)), "2 bodies"),
    "a triangle missing": (solids.Solid(GOOD.vertices, GOOD.faces[1:]), "not watertight"),
    "a triangle turned": (solids.Solid(GOOD.vertices, np.r_[GOOD.faces[1:], GOOD.faces[:1, ::-1]]), "different ways"),
    "the blind hole goes through": (
        solid_of(plate() - Manifold.cylinder(8, 4, 4, 64).translate([-15, 0, -1])), "2 holes go through",
    ),
    "the blind hole is deeper": (
        solid_of(plate() - Manifold.cylinder(4, 4, 4, 64).translate([-15, 0, 2])), "the blind hole",
    ),
    "a thin wall": (
        solid_of(plate() - Manifold.cube([10, 2, 20]).translate([0, 17, -1])), "a wall is 1.00 mm thick",
    ),
}  # fmt: skip


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_flaw_is_found_and_named(flaw):
    solid, why = FLAWS[flaw]
    found, told, _ = judged(solid)
    assert found == "wrong"
    assert why in told, told


@pytest.mark.parametrize("segments", [32, 48, 200])
def test_the_part_passes_however_finely_it_is_meshed(segments):
    assert judged(solid_of(plate(segments=segments)))[:2] == ("right", "")


@pytest.mark.parametrize("kind", KINDS)
def test_the_part_passes_in_every_form_of_file(kind):
    mesh = trimesh.Trimesh(GOOD.vertices, GOOD.faces, process=False)
    content = mesh.export(file_type=kind)
    content = content.encode() if isinstance(content, str) else content
    found = solids.check(content, content, kind, msgspec.to_builtins(WANTED))
    assert found[:2] == ("right", ""), found


def test_triangles_that_all_vanish_are_no_solid_and_no_crash():
    point = trimesh.Trimesh([[0, 0, 0], [1, 0, 0], [0, 0, 0]], [[0, 1, 2]], process=False).export(file_type="stl")
    good = trimesh.Trimesh(GOOD.vertices, GOOD.faces, process=False).export(file_type="stl")
    found = solids.check(point, good, "stl", msgspec.to_builtins(WANTED))
    assert found == ("wrong", "the triangles of the file have no area", {"loads": 0.0})


def test_measures_are_those_of_closed_forms():
    sphere = solids.measure(solid_of(Manifold.sphere(10, 256)))
    assert sphere["volume"] == pytest.approx(4 / 3 * math.pi * 1000, rel=1e-3)
    assert sphere["centre"] == pytest.approx([0, 0, 0], abs=1e-3)
    ring = solids.measure(solid_of(Manifold.revolve(manifold3d.CrossSection.circle(2, 64).translate([10, 0]), 128)))
    assert (ring["genus"], ring["bodies"], ring["cavities"]) == (1, 1, 0)
    assert ring["volume"] == pytest.approx(2 * math.pi**2 * 10 * 4, rel=1e-2)
    holes = Manifold.cube([50, 10, 5])
    for n in range(4):
        holes -= Manifold.cylinder(7, 2, 2, 24).translate([8 + 10 * n, 5, -1])
    assert solids.measure(solid_of(holes))["genus"] == 4
    hollow = Manifold.cube([10, 10, 10], True) - Manifold.cube([4, 4, 4], True)
    measured = solids.measure(solid_of(hollow))
    assert (measured["bodies"], measured["cavities"], measured["genus"]) == (1, 1, 0)
    assert measured["volume"] == pytest.approx(1000 - 64)


def test_overlap_is_absolute():
    cube, half = (solid_of(Manifold.cube([2, 2, 2]).translate([x, 0, 0])) for x in (0, 1))
    assert solids.overlap(cube, cube) == pytest.approx(1)
    assert solids.overlap(cube, half) == pytest.approx(1 / 3)
    assert solids.overlap(cube, scaled(cube, 1, 10)) == 0


def test_winding_numbers_and_thickness():
    ball = solid_of(Manifold.sphere(5, 64))
    points = np.random.default_rng(1).normal(0, 4, (400, 3))
    far = abs(np.linalg.norm(points, axis=1) - 5) > 0.05
    assert (solids.within(ball, points[far]) == (np.linalg.norm(points[far], axis=1) < 5)).all()
    slab = solid_of(Manifold.cube([30, 20, 3]))
    at, normals, face = solids.samples(slab, 200)
    assert solids.thickness(slab, at, normals).min() == pytest.approx(3)
    assert len(np.unique(face)) == 6


def test_a_gold_part_that_is_not_as_stated_is_the_tasks_fault():
    for change in ({"volume": 13000.0}, {"genus": 2}, {"box": [(0, 0, 0), (1, 1, 1)]}, {"wall": 4.0}):
        wanted = msgspec.structs.replace(WANTED, **change)
        assert judged(GOOD, wanted)[0] == "gold-fails"
    assert judged(GOOD, gold=FLAWS["a triangle missing"][0])[0] == "gold-fails"


@pytest.mark.parametrize(
    "content",
    [
        b"", b"solid part\nendsolid part\n", bytes(80) + b"\xff" * 4, bytes(84), b"\0" * 1000, b"{}" * 1000,
        b"solid\n" + b"facet normal nan nan nan\nouter loop\nvertex nan nan nan\n" * 1000,
        bytes(80) + (1).to_bytes(4, "little") + struct.pack("<12fH", *[math.nan] * 12, 0),
        bytes(80) + (1).to_bytes(4, "little") + struct.pack("<12fH", *[1e30] * 12, 0),
    ],
)  # fmt: skip
def test_files_without_a_solid_are_named_and_crash_nothing(content):
    found, why, _ = solids.check(content, stl(GOOD), "stl", msgspec.to_builtins(WANTED))
    assert found == "wrong"
    assert why


def test_too_many_triangles_are_refused_at_once():
    began = time.process_time()
    content = bytes(80) + (600_000).to_bytes(4, "little") + bytes(50 * 600_000)
    found, why, _ = solids.check(content, stl(GOOD), "stl", msgspec.to_builtins(WANTED))
    assert (found, "at most" in why) == ("wrong", True)
    assert time.process_time() - began < 3


# -- views


def test_views_see_what_is_missing_and_where():
    tower = solid_of(Manifold.cube([10, 10, 10]) + Manifold.cube([4, 4, 10]).translate([0, 0, 10]))
    cube = solid_of(Manifold.cube([10, 10, 10]))
    seen = views.agreement(cube.corners, tower.corners)
    assert seen["top_silhouette"] == 1.0
    assert seen["top_depth"] == pytest.approx(1 - 0.16, abs=0.03)
    assert seen["front_silhouette"] == pytest.approx(100 / 140, abs=0.03)
    assert min(views.agreement(tower.corners, tower.corners).values()) == 1.0


def test_pictures_are_png_files():
    content = views.picture(GOOD.corners, GOOD.corners, "top")
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    red = Image.open(io.BytesIO(content)).getchannel("R")
    assert red.size == (views.PIXELS, views.PIXELS)
    assert (np.asarray(red) > 0).mean() == pytest.approx(40 * 60 / (60 * 1.2) ** 2, abs=0.05)  # less the hole


# -- scripts in a sandbox

SCRIPT = """
import numpy
facets = numpy.frombuffer(bytes.fromhex(%r), "<f4").reshape(-1, 3, 3)
rows = numpy.zeros(len(facets), [("normal", "<3f4"), ("corners", "<(3,3)f4"), ("spare", "<u2")])
rows["corners"] = facets
open("part.stl", "wb").write(bytes(80) + len(rows).to_bytes(4, "little") + rows.tobytes())
"""


def script(solid: solids.Solid) -> str:
    return SCRIPT % solid.corners.astype("<f4").tobytes().hex()


@pytest.fixture(scope="module")
def stocked(loop):
    """Sandboxes that see the packages that are installed here."""
    backend = local.create(local.Config(paths=(sys.prefix,)))
    yield backend
    asyncio.run_coroutine_threadsafe(backend.close(), loop).result()


@pytest.fixture
def grade(judged, pool, stocked):
    def run(text: str, reference: geometry.Reference, **settings):
        verifier = geometry.create(geometry.Config(**settings), pool, stocked)
        given = {"part.py": text.encode()}
        return judged(
            verifier, msgspec.to_builtins(reference), "", given, artifacts=("part.py",),
            sandbox=SandboxSpec(memory=2 << 30),
        )  # fmt: skip

    return run


BLOCK = solid_of(Manifold.cube([10, 20, 30]))
REFERENCE = geometry.Reference(script=script(BLOCK), volume=6000.0, genus=0)


def test_a_script_is_run_and_its_part_compared(grade):
    right = grade(script(BLOCK), REFERENCE)
    assert (right.score, right.components["overlap"]) == (1.0, pytest.approx(1.0))
    wrong = grade(script(scaled(BLOCK, 1.05)), REFERENCE)
    assert (wrong.status, wrong.score) == ("graded", 0.0)
    assert "bounding box" in wrong.evidence[0].text
    assert wrong.components["front_silhouette"] < 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "No such file or directory: 'part.stl'"),
        ("raise SystemExit(0)", "No such file or directory: 'part.stl'"),
        (script(BLOCK) + "import os; os._exit(0)", "the script ended before it could be read"),
        (script(BLOCK) + "import sys; sys.exit(3)", "ended with exited 3"),
        (script(BLOCK) + "import os; os.kill(os.getpid(), 11)", "ended with signalled 11"),
        ("import os; os.symlink('/etc/passwd', 'part.stl')", "no triangles"),
        ("import os; os.symlink('/dev/zero', 'part.stl')", "triangles"),
        ("import os; os.mkdir('part.stl')", "Is a directory"),
        ("open('part.stl', 'w').write('3')", "no triangles"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_script_without_a_part_scores_nothing_and_hears_why(grade, text, why):
    verdict = grade(text, REFERENCE)
    assert (verdict.status, verdict.score) == ("graded", 0.0)
    assert why in verdict.evidence[0].text


def test_a_script_that_never_ends_is_the_policys_own_doing(grade):
    verdict = grade("while True: pass", REFERENCE, seconds=1.0)
    assert (verdict.status, verdict.blame, verdict.why, verdict.score) == ("graded", "policy", "deadline", 0.0)


def test_a_gold_script_that_fails_is_the_tasks_fault_even_if_the_answer_does_too(grade):
    for gold in ("1 / 0", "import no_such_package", "while True: pass"):
        reference = msgspec.structs.replace(REFERENCE, script=gold)
        verdict = grade(script(BLOCK), reference, seconds=1.0)
        assert (verdict.masked, verdict.blame) == (True, "task"), verdict


@pytest.mark.slow
def test_build123d_parts_pass_as_stl_and_as_step(grade):
    """Volume by closed form: a box with a hole and four rounded edges."""
    pytest.importorskip("build123d", reason="build123d is not installed (extra cad)")
    made = (
        "from build123d import *\nbox = Box(40, 30, 10)\n"
        "part = fillet(box.edges().filter_by(Axis.Z), 5) - Cylinder(4, 10)\n"
    )
    volume = (40 * 30 - (4 - math.pi) * 25) * 10 - math.pi * 16 * 10
    rounded = probes.fillet("the edges", (-20, -15, -5), "z", (1, 1, 0), 5, 10, slack=0.25)
    for export, call in (("part.stl", "export_stl(part, 'part.stl')"), ("part.step", "export_step(part, 'part.step')")):
        reference = geometry.Reference(
            script=made + call, export=export, volume=volume, genus=1, features=[rounded],
            box=[(-20, -15, -5), (20, 15, 5)],
        )  # fmt: skip
        assert grade(made + call, reference).score == 1.0
        assert grade(made.replace("fillet(", "chamfer(") + call, reference).score == 0.0
        broken = f"open({export!r}, 'w').write('ISO-10303-21; END-ISO-10303-21;')"
        assert grade(broken, reference).score == 0.0


# -- outsiders' models


@pytest.mark.outside
def test_trimeshs_own_models_are_measured_as_trimesh_does():
    found = [path for path in OUTSIDE.rglob("*") if path.suffix.lower().lstrip(".") in KINDS]
    if not found:
        pytest.skip(f"no models under {OUTSIDE}")
    pytest.importorskip("scipy", reason="trimesh counts bodies with scipy")
    for path in found:
        kind = path.suffix.lower().lstrip(".")
        try:
            ours = solids.measure(solids.load(path.read_bytes(), kind))
        except solids.NoSolidError:
            continue
        theirs = trimesh.load(io.BytesIO(path.read_bytes()), file_type=kind, force="mesh")
        theirs.merge_vertices(merge_tex=True, merge_norm=True)  # a seam of a texture is no hole
        assert ours["watertight"] == theirs.is_watertight or path.stem == "capsule", path  # merged here, not there
        if theirs.is_volume:
            assert ours["volume"] == pytest.approx(theirs.volume, rel=1e-4), path
            assert ours["bodies"] + ours["cavities"] == theirs.body_count, path
