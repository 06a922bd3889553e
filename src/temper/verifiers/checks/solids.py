"""A delivered mesh against the one it should be: one closed body of the right shape, size and place, in millimetres.

Meshes are compared where they stand: nothing is centred, scaled or aligned, and a distance between point clouds decides
nothing. `measure` is what a mesh is by itself; `check` adds the comparison with the gold mesh: overlap (manifold3d),
the place of every smooth face, named features by probes, wall thickness, and views (`checks.views`).

Topology is counted here, with numpy, so that no library's repair hides a flaw. Loading is trimesh's.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from temper.verifiers.checks import views

_MOST_FACES = 60_000  # of a mesh that is compared
_VOLUME = 0.02  # that volumes may differ by, as meshes of round things are too small
_PAIRS = 1 << 15  # of points and faces that are looked at at once
_WORK = 2_000_000  # of such pairs in one comparison of faces
_SMOOTH = math.cos(math.radians(30))  # neighbours that bend less belong to one face


class NoSolidError(Exception):
    """The file holds no mesh that could be a solid; the message says what it holds."""


class Solid(NamedTuple):
    """Triangles over merged vertices: (V, 3) float64 and (F, 3) int64."""

    vertices: np.ndarray
    faces: np.ndarray

    @property
    def corners(self) -> np.ndarray:
        return self.vertices[self.faces]  # (F, 3, 3)

    @property
    def edges(self) -> np.ndarray:
        """(3 F, 2), as the triangles go round."""
        return np.concatenate([self.faces[:, [0, 1]], self.faces[:, [1, 2]], self.faces[:, [2, 0]]])


def load(content: bytes, kind: str, most: int = 1 << 20) -> Solid:
    """A file of at most `most` triangles. Raises NoSolidError."""
    import trimesh

    try:
        mesh = trimesh.load_mesh(io.BytesIO(content), file_type=kind, process=False)
        vertices, faces = np.asarray(mesh.vertices, float), np.asarray(mesh.faces, np.int64)
    except MemoryError:
        raise
    except Exception as error:  # a loader's own words for a file that is not of its kind
        raise NoSolidError(f"no {kind} file: {type(error).__name__}: {str(error)[:100]}") from None
    if faces.ndim != 2 or faces.shape[1:] != (3,) or not len(faces):
        raise NoSolidError("the file holds no triangles")
    if len(faces) > most:
        raise NoSolidError(f"{len(faces)} triangles, expected at most {most}")
    if not np.isfinite(vertices[faces]).all() or abs(vertices[faces]).max() > 1e6:
        raise NoSolidError("a vertex is not finite, or too far away")
    solid = merged(vertices, faces)
    if not len(solid.faces):
        raise NoSolidError("the triangles of the file have no area")
    return solid


def merged(vertices: np.ndarray, faces: np.ndarray) -> Solid:
    """Vertices at one place (to a ten millionth of the size) become one; triangles that vanish by that are left out."""
    size = np.ptp(vertices[faces].reshape(-1, 3), axis=0).max() or 1.0
    _, first, index = np.unique(np.round(vertices / (size * 1e-7)), axis=0, return_index=True, return_inverse=True)
    faces = index.reshape(-1)[faces]
    return Solid(vertices[first], faces[(faces != np.roll(faces, 1, axis=1)).all(1)])


def measure(solid: Solid) -> dict[str, Any]:
    """What a mesh is: closed, oriented, bodies, cavities, holes through it (genus), volume, box, centre of mass."""
    edges, used, volume = solid.edges, np.unique(solid.faces), _signed(solid)
    _, shared = np.unique(np.sort(edges, 1), axis=0, return_counts=True)
    _, directed = np.unique(edges, axis=0, return_counts=True)
    parts = components(solid.faces, len(solid.vertices))
    volumes = np.bincount(parts, volume)
    euler = len(used) - len(shared) + len(solid.faces)
    points, weighted = solid.vertices[used], solid.corners.sum(1) / 4
    return {
        "watertight": bool((shared == 2).all()),
        "oriented": bool((directed == 1).all()),
        "bodies": int((volumes > 0).sum()),
        "cavities": int((volumes <= 0).sum()),
        "genus": int(len(volumes) - euler / 2),
        "volume": float(volume.sum()),
        "box": [points.min(0).tolist(), points.max(0).tolist()],
        "centre": (volume @ weighted / (volume.sum() or 1.0)).tolist(),
    }


def check(content: bytes, gold: bytes, kind: str, wanted: dict[str, Any]) -> tuple[str, str, dict[str, float]]:
    """("right" | "wrong" | "gold-fails", why, components). `wanted` is `verifiers.geometry.Reference` as plain data."""
    try:
        model = load(gold, kind, _MOST_FACES)
        facts = measure(model)
        whys = [*_flaws(facts, wanted)] or [*_stated(facts, wanted), *_probed(model, wanted), *_thin(model, wanted)]
    except NoSolidError as error:
        whys = [str(error)]
    if whys:
        return "gold-fails", "; ".join(whys[:3]), {}
    try:
        solid = load(content, kind, _MOST_FACES)
    except NoSolidError as error:
        return "wrong", str(error), {"loads": 0.0}
    found = measure(solid)
    if flaws := list(_flaws(found, wanted)):  # the rest presumes one closed body
        return "wrong", flaws[0], {"loads": 1.0, "closed": 0.0}
    whys, components = _compared(solid, found, model, facts, wanted)
    return "wrong" if whys else "right", "; ".join(whys[:4]), components


def _compared(
    solid: Solid, found: dict[str, Any], model: Solid, facts: dict[str, Any], wanted: dict[str, Any]
) -> tuple[list[str], dict[str, float]]:
    tolerance, genus = wanted["tolerance"], found["genus"]
    whys = [f"{genus} holes go through, expected {facts['genus']}"] if genus != facts["genus"] else []
    for name, what in (("box", "the bounding box"), ("centre", "the centre of mass")):
        if np.abs(np.subtract(found[name], facts[name])).max() > tolerance:
            whys.append(f"{what} is {np.round(found[name], 2).tolist()}, expected {np.round(facts[name], 2).tolist()}")
    if abs(found["volume"] / facts["volume"] - 1) > _VOLUME:
        whys.append(f"the volume is {found['volume']:.6g} mm3, expected {facts['volume']:.6g}")
    missed, shared = list(_probed(solid, wanted)), overlap(solid, model)
    if shared < wanted["overlap"]:
        whys.append(f"it shares {shared:.1%} of its volume with the expected part")
    whys += [*missed, *_thin(solid, wanted)]
    whys = whys or [*strays(model, solid, tolerance), *strays(solid, model, tolerance)]
    features = 1 - len(missed) / max(len(wanted["features"]), 1)
    components = {"loads": 1.0, "closed": 1.0, "overlap": shared, "features": features}
    if whys:
        seen = views.agreement(solid.corners, model.corners)
        worst = min(seen, key=lambda name: seen[name])
        whys.insert(3, f"from the {worst.replace('_', ', the ')} agrees to {seen[worst]:.0%}")
        components |= seen
    return whys, components


def _flaws(found: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    """Why a mesh is no part at all."""
    if not found["watertight"]:
        yield "the mesh is not watertight"
    elif not found["oriented"]:
        yield "neighbouring triangles face different ways"
    elif found["volume"] <= 0:
        yield "its volume is negative: the triangles face inwards"
    elif found["bodies"] != 1:
        yield f"{found['bodies']} bodies, expected one (unite what overlaps)"
    elif found["cavities"] != wanted["cavities"]:
        yield f"{found['cavities']} closed cavities, expected {wanted['cavities']}"


def _stated(facts: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    """Whether the gold mesh is what the task says about it."""
    if wanted["volume"] and abs(facts["volume"] / wanted["volume"] - 1) > _VOLUME:
        yield f"the gold part's volume is {facts['volume']:.6g}, the task says {wanted['volume']:.6g}"
    if wanted["box"] and np.abs(np.subtract(facts["box"], wanted["box"])).max() > wanted["tolerance"]:
        yield f"the gold part's box is {facts['box']}, the task says {wanted['box']}"
    if wanted["genus"] is not None and facts["genus"] != wanted["genus"]:
        yield f"the gold part's genus is {facts['genus']}, the task says {wanted['genus']}"


def _probed(solid: Solid, wanted: dict[str, Any]) -> Iterator[str]:
    """Features whose probes are not all in material, or not all out of it."""
    points = [point for feature in wanted["features"] for point in (*feature["solid"], *feature["empty"])]
    inside = iter(within(solid, np.array(points, float)) if points else ())
    for feature in wanted["features"]:
        filled = [next(inside) for _ in feature["solid"]]
        open_ = [not next(inside) for _ in feature["empty"]]
        if not all(filled + open_):
            yield f"{feature['name']}: {'material is missing' if all(open_) else 'material is where none should be'}"


def _thin(solid: Solid, wanted: dict[str, Any]) -> Iterator[str]:
    if wanted["wall"]:
        points, normals, _ = samples(solid, 320)
        depth = thickness(solid, points, normals)
        at = int(depth.argmin())
        if depth[at] < wanted["wall"] - min(0.1, wanted["tolerance"]):
            yield f"a wall is {depth[at]:.2f} mm thick near {points[at].round(1).tolist()}, expected {wanted['wall']:g}"


def overlap(a: Solid, b: Solid) -> float:
    """Volume of the intersection over that of the union, where they stand."""
    import manifold3d

    first, second = (manifold3d.Manifold(manifold3d.Mesh(np.float32(s.vertices), np.uint32(s.faces))) for s in (a, b))
    if any(body.status() != manifold3d.Error.NoError for body in (first, second)):
        return 0.0
    both = (first ^ second).volume()
    return float(both / max(first.volume() + second.volume() - both, 1e-12))


def strays(model: Solid, solid: Solid, tolerance: float) -> Iterator[str]:
    """Smooth faces of `model` from which the surface of `solid` is further away than `tolerance`.

    A point a little under a face has to be inside of both, one a little above it outside of both; where that is not so
    for `model` itself (at thin walls and inner edges) it says nothing. A third of a face's points decides.
    """
    room = int(np.clip(_WORK / 4 / max(len(solid.faces), len(model.faces)), 64, 320))
    points, normals, face = samples(model, room)
    lower, upper = points - tolerance * normals, points + tolerance * normals
    useful = within(model, lower) & ~within(model, upper)
    points, face = points[useful], face[useful]
    wrong = ~within(solid, lower[useful]) | within(solid, upper[useful])
    for label in np.unique(face):
        if wrong[face == label].mean() > 1 / 3:
            place = points[(face == label) & wrong][0].round(1).tolist()
            yield f"the surface near {place} is off by more than {tolerance:g} mm"


def samples(solid: Solid, room: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points on the surface, at least four on every smooth face: where (n, 3), outward normals (n, 3), face (n,)."""
    corners = solid.corners
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    areas = np.linalg.norm(normals, axis=1)
    normals = normals / np.maximum(areas, 1e-30)[:, None]
    patch = smooth_faces(solid, normals)
    sizes = np.bincount(patch, areas)
    largest = [label for label in np.argsort(-sizes)[: room // 4] if sizes[label] > 1e-6 * sizes.sum()]
    rng, chosen = np.random.default_rng(0), list[np.ndarray]()
    for label in largest:
        members = np.flatnonzero(patch == label)
        n = max(4, int(room / 2 * sizes[label] / sizes.sum()))
        chosen.append(rng.choice(members, n, p=areas[members] / areas[members].sum()))
    at = np.concatenate(chosen)
    weights = rng.dirichlet((2, 2, 2), len(at))
    return (corners[at] * weights[:, :, None]).sum(1), normals[at], patch[at]


def smooth_faces(solid: Solid, normals: np.ndarray) -> np.ndarray:
    """A label for each triangle: neighbours that bend little belong together."""
    order = np.lexsort(np.sort(solid.edges, 1).T)
    pairs = (order % len(solid.faces)).reshape(-1, 2)  # a closed mesh: two triangles an edge
    bends = (normals[pairs[:, 0]] * normals[pairs[:, 1]]).sum(1)
    return components(pairs[bends > _SMOOTH], len(solid.faces), of="nodes")


def components(links: np.ndarray, nodes: int, of: str = "links") -> np.ndarray:
    """Connected components of a graph whose links join two or three nodes: a label from 0 on for each link or node."""
    label = np.arange(nodes)
    while len(links):
        least = label[links].min(1)
        new = label.copy()
        for column in links.T:
            np.minimum.at(new, label[column], least)
        new = new[new[label]]
        if (new == label).all():
            break
        label = new
    found = label[links[:, 0]] if of == "links" else label
    return np.unique(found, return_inverse=True)[1].reshape(-1)


def within(solid: Solid, points: np.ndarray) -> np.ndarray:
    """Which points are in material, by winding numbers (van Oosterom and Strackee 1983): bool (n,)."""
    corners = np.ascontiguousarray(solid.corners.transpose(1, 2, 0))  # (corner, axis, F)
    found = np.zeros(len(points))
    step = max(_PAIRS // corners.shape[2], 1)
    for at in range(0, len(points), step):
        (ax, ay, az), (bx, by, bz), (cx, cy, cz) = corners[:, :, None] - points[at : at + step].T[None, :, :, None]
        la, lb, lc = (np.sqrt(x * x + y * y + z * z) for x, y, z in ((ax, ay, az), (bx, by, bz), (cx, cy, cz)))
        over = ax * (by * cz - bz * cy) + ay * (bz * cx - bx * cz) + az * (bx * cy - by * cx)
        under = la * lb * lc + (ax * bx + ay * by + az * bz) * lc
        under += (bx * cx + by * cy + bz * cz) * la + (cx * ax + cy * ay + cz * az) * lb
        found[at : at + step] = np.arctan2(over, under).sum(1) / (2 * math.pi)
    return found > 0.5


def thickness(solid: Solid, points: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """How far it is from points on the surface, inwards, to the other side (Moeller and Trumbore 1997): (n,)."""
    start, first, second = solid.corners[:, 0], *(solid.corners[:, k] - solid.corners[:, 0] for k in (1, 2))
    found = np.full(len(points), np.inf)
    step = max(_PAIRS // len(start), 1)
    for at in range(0, len(points), step):
        way = -normals[at : at + step, None]
        cross = np.cross(way, second[None])
        det = (cross * first).sum(-1)
        away = points[at : at + step, None] - start
        with np.errstate(divide="ignore", invalid="ignore"):
            u = (away * cross).sum(-1) / det
            turn = np.cross(away, first[None])
            v = (way * turn).sum(-1) / det
            far = (turn * second).sum(-1) / det
            hit = (u >= 0) & (v >= 0) & (u + v <= 1) & (far > 1e-4) & (abs(det) > 1e-12)
        found[at : at + step] = np.where(hit, far, np.inf).min(1)
    return found


def _signed(solid: Solid) -> np.ndarray:
    """Signed volumes of the tetrahedra between the origin and each triangle."""
    a, b, c = solid.corners.transpose(1, 0, 2)
    return (a * np.cross(b, c)).sum(1) / 6
