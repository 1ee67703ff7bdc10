# SPDX-License-Identifier: Apache-2.0
"""Batches to order and plan: a synthetic flight over a plane, and a real capture's observations."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Matrix = np.ndarray[Any, Any]

FOOTPRINT = np.array([1.0, 0.75])  # of a photo on the ground; the unit of length
OVERLAP = np.array([0.8, 0.6])  # of neighbouring photos along and across the flight


@dataclass(frozen=True)
class Flight:
    """What every view sees.

    Attributes:
        name: of the scene.
        centres: (V, 3) camera centres.
        rows: for each view the sorted ids it sees.
    """

    name: str
    centres: Matrix
    rows: list[Matrix]

    def batch(self, views: Matrix) -> tuple[Matrix, Matrix]:
        """Union ids (U,) int32 and mask (U, W) uint32 of some views."""
        n_rows = 1 + max(int(r[-1]) if len(r) else 0 for r in self.rows)
        mask = np.zeros((n_rows, -(-len(views) // 32)), np.uint32)
        for b, view in enumerate(views):
            mask[self.rows[view], b // 32] |= np.uint32(1 << (b % 32))
        ids = np.flatnonzero(mask.any(axis=1))
        return ids.astype(np.int32), mask[ids]


def aerial(n_views: int, rows_per_view: int, seed: int = 0) -> Flight:
    """A nadir flight in strips over points of a plane, numbered along a Morton curve.

    A view sees 90 % of the points below it, in patches, as occlusion leaves them.
    """
    rng = np.random.default_rng(seed)
    step = FOOTPRINT * (1 - OVERLAP)
    along = int(np.ceil(np.sqrt(n_views * step[1] / step[0])))
    k = np.arange(n_views)
    strip, place = k // along, k % along
    place = np.where(strip % 2 == 0, place, along - 1 - place)
    centres = np.stack([place, strip], axis=1) * step + rng.normal(0, 0.02, (n_views, 2))
    low, high = centres.min(axis=0) - FOOTPRINT / 2, centres.max(axis=0) + FOOTPRINT / 2
    density = rows_per_view / (0.9 * FOOTPRINT.prod())
    points = low + rng.random((int(density * (high - low).prod()), 2)) * (high - low)
    points = points[np.argsort(_morton((points - low) / (high - low).max()), kind="stable")]
    patch = np.arange(len(points)) // 256
    rows = []
    for centre in centres:
        below = np.flatnonzero((np.abs(points - centre) < FOOTPRINT / 2).all(axis=1))
        rows.append(below[(rng.random(patch[-1] + 1) < 0.9)[patch[below]]])
    return Flight("city", np.c_[centres, np.ones(n_views)], rows)


def _morton(unit: Matrix) -> Matrix:
    """Interleaved bits of coordinates in [0, 1]."""
    code = np.zeros(len(unit), np.uint64)
    for axis in range(2):
        x = np.minimum(unit[:, axis] * 65536, 65535).astype(np.uint64)
        for shift, keep in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
            x = (x | (x << np.uint64(shift))) & np.uint64(keep)
        code |= x << np.uint64(axis)
    return code


def data_folder() -> Path:
    """``$GS_DATA``, else ``shared/data`` beside the repository."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get("GS_DATA", beside))


def observed(folder: Path) -> Flight:
    """The points that each photo of a COLMAP capture observes (``sparse/0/images.bin``)."""
    data = (folder / "sparse" / "0" / "images.bin").read_bytes()
    (n_images,) = struct.unpack_from("<Q", data)
    at, found = 8, []
    for _ in range(n_images):
        pose = np.frombuffer(data, "<f8", 7, at + 4)
        end = data.index(b"\0", at + 64)
        name = data[at + 64 : end].decode()
        (n_points,) = struct.unpack_from("<Q", data, end + 1)
        record = np.dtype([("xy", "<f8", 2), ("id", "<i8")])
        ids = np.frombuffer(data, record, n_points, end + 9)["id"]
        at = end + 9 + n_points * record.itemsize
        found.append((name, _centre(pose), np.unique(ids[ids >= 0])))
    found.sort(key=lambda image: image[0])
    return Flight(folder.name, np.array([c for _, c, _ in found]), [r for *_, r in found])


def _centre(pose: Matrix) -> Matrix:
    w, x, y, z = pose[:4]
    rotation = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
    return -rotation.T @ pose[4:]
