"""Renders of meshes from fixed cameras, without a graphics library: depth pictures, their agreement, PNG for people.

Cameras are orthographic, look at the gold part's box from the front, the right, the top and aslant, and stay there
whatever is shown. A surface is drawn as points closer together than pixels, the nearest of which counts.
"""

from __future__ import annotations

import io

import numpy as np

PIXELS = 64
_MOST_POINTS = 150_000
# For each camera: the axes of the picture to the right, upwards and towards the eye.
CAMERAS = {
    "front": np.array([[1, 0, 0], [0, 0, 1], [0, -1, 0]], float),
    "right": np.array([[0, 1, 0], [0, 0, 1], [1, 0, 0]], float),
    "top": np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], float),
    "aslant": np.array([[0.7071, 0.7071, 0], [-0.4082, 0.4082, 0.8165], [0.5774, -0.5774, 0.5774]]),
}


def agreement(corners: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Shares in [0, 1], by camera: silhouettes (intersection over union), and depths within 2 % where both are seen."""
    found: dict[str, float] = {}
    for name in CAMERAS:
        a, b = depth(corners, gold, name), depth(gold, gold, name)
        both, either = np.isfinite(a) & np.isfinite(b), np.isfinite(a) | np.isfinite(b)
        found[f"{name}_silhouette"] = float(both.sum() / max(either.sum(), 1))
        found[f"{name}_depth"] = float((abs(a[both] - b[both]) < 0.02).mean()) if both.any() else 0.0
    return found


def depth(corners: np.ndarray, frame: np.ndarray, camera: str) -> np.ndarray:
    """How near the surface is, by pixel (PIXELS, PIXELS), from the top left; -inf where there is none.

    corners, frame: triangles (F, 3, 3). 1 is the length of the picture's side, which shows `frame` with a margin.
    """
    axes = CAMERAS[camera]
    box = frame.reshape(-1, 3) @ axes.T
    middle, side = (box.min(0) + box.max(0)) / 2, np.ptp(box, axis=0).max() * 1.2 or 1.0
    points = (_scattered((corners @ axes.T - middle) / side) * [1, -1, 1]) + [0.5, 0.5, 0]
    cells = np.floor(points[:, :2] * PIXELS).astype(int)
    shown = ((cells >= 0) & (cells < PIXELS)).all(1)
    picture = np.full(PIXELS * PIXELS, -np.inf)
    np.maximum.at(picture, cells[shown, 1] * PIXELS + cells[shown, 0], points[shown, 2])
    return picture.reshape(PIXELS, PIXELS)


def _scattered(corners: np.ndarray) -> np.ndarray:
    """Points on triangles, less than a pixel apart: (n, 3)."""
    sides = np.linalg.norm(corners - np.roll(corners, 1, axis=1), axis=2).max(1)
    steps = np.clip(np.ceil(sides * PIXELS * 1.25), 1, 3 * PIXELS)
    steps = np.maximum(steps * min(1.0, (2 * _MOST_POINTS / (steps**2).sum()) ** 0.5), 1).astype(int)
    found = []
    for n in np.unique(steps):
        rows, columns = np.meshgrid(np.arange(n + 1), np.arange(n + 1))
        inner = rows + columns <= n
        a, b = rows[inner] / n, columns[inner] / n
        some = corners[steps == n]
        found.append(np.einsum("pk,fkd->fpd", np.stack([a, b, 1 - a - b], 1), some).reshape(-1, 3))
    return np.concatenate(found)


def picture(corners: np.ndarray, frame: np.ndarray, camera: str) -> bytes:
    """The depth picture as a grey PNG: near is bright, nothing is black."""
    from matplotlib import image

    near = depth(corners, frame, camera)
    seen = np.isfinite(near)
    low, high = (near[seen].min(), near[seen].max()) if seen.any() else (0.0, 1.0)
    grey = np.where(seen, 60 + 195 * (near - low) / max(high - low, 1e-9), 0)
    file = io.BytesIO()
    image.imsave(file, np.nan_to_num(grey), cmap="gray", vmin=0, vmax=255, format="png")
    return file.getvalue()
