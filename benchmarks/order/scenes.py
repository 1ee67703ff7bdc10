# SPDX-License-Identifier: Apache-2.0
"""What every view of a scene sees: of the shared synthetic city, and of a real capture's points."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import gs_cull
from workloads import city, flight

Matrix = np.ndarray[Any, Any]

_VIEWS_AT_ONCE = 64


@dataclass(frozen=True)
class Scene:
    """Rows in Morton order and the views over them.

    Attributes:
        name: of the scene.
        viewmats: (V, 4, 4) world to camera.
        seen: for each run of 64 views what they see together.
    """

    name: str
    viewmats: Matrix
    seen: tuple[gs_cull.Visibility, ...]

    def __len__(self) -> int:
        return len(self.viewmats)

    @cached_property
    def centres(self) -> Matrix:
        """(V, 3) camera centres."""
        return np.linalg.inv(self.viewmats)[:, :3, 3]

    def rows(self, view: int) -> Matrix:
        """Sorted ids of what a view sees."""
        return np.asarray(self.seen[view // _VIEWS_AT_ONCE].view(view % _VIEWS_AT_ONCE))

    def batch(self, views: Matrix) -> tuple[Matrix, Matrix]:
        """Union ids (U,) int32 and mask (U, W) uint32 of some views."""
        n_rows = 1 + max(int(seen.ids[-1]) for seen in self.seen if len(seen))
        mask = np.zeros((n_rows, -(-len(views) // 32)), np.uint32)
        for b, view in enumerate(views):
            mask[self.rows(int(view)), b // 32] |= np.uint32(1 << (b % 32))
        ids = np.flatnonzero(mask.any(axis=1))
        return ids.astype(np.int32), mask[ids]


def city_scene(n: int, n_views: int, share: float) -> Scene:
    """The synthetic city of n Gaussians under a survey; a view sees about ``share`` of them."""
    made = city(n, share=share)
    photos = flight(made, n_views)
    rows = [a.numpy() for a in (*made.rows, made.opacities)]
    cameras = (photos.viewmats.numpy(), photos.Ks.numpy(), photos.width, photos.height)
    return _culled("city", rows, *cameras)


def caliterra() -> Scene | None:
    """A drone capture of 75 photos: each of its points as a Gaussian as wide as they are apart.

    Returns:
        None where the capture is not in ``$GS_DATA`` (else ``shared/data`` beside the repository).
    """
    folder = _data_folder() / "caliterra"
    if not folder.is_dir():
        return None
    from gs_train.data.colmap import read_model, read_points
    from gs_train.data.distortion import undistorted_pinhole
    from gs_train.scene.initialize import rows_from_points

    model = read_model(folder / "sparse/0")
    made = rows_from_points(*read_points(model.folder), sh_degree=0, seed=0)
    names = ("means", "scales", "quats", "opacities")
    rows = [made[name].detach().reshape(len(made[name]), -1).numpy() for name in names]
    pinholes = [undistorted_pinhole(model.cameras[image.camera_id]) for image in model.images]
    return _culled(
        "caliterra",
        [*rows[:3], rows[3][:, 0].copy()],
        np.array([image.world_to_camera for image in model.images]),
        np.array([pinhole.K for pinhole in pinholes]),
        [pinhole.width for pinhole in pinholes],
        [pinhole.height for pinhole in pinholes],
    )


def _data_folder() -> Path:
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    return Path(os.environ.get("GS_DATA", beside))


def _culled(
    name: str, rows: list[Matrix], viewmats: Matrix, Ks: Matrix, width: Any, height: Any
) -> Scene:
    curve = gs_cull.Blocks.build(*rows[:3], 4096).order
    means, scales, quats, opacities = (np.ascontiguousarray(a[curve]) for a in rows)
    blocks = gs_cull.Blocks.build(means, scales, quats, 4096, sort=False)
    sizes = np.broadcast_to(width, len(viewmats)), np.broadcast_to(height, len(viewmats))
    seen = []
    for start in range(0, len(viewmats), _VIEWS_AT_ONCE):
        some = slice(start, start + _VIEWS_AT_ONCE)
        w, h = (np.ascontiguousarray(size[some]) for size in sizes)
        cameras = (viewmats[some].astype(np.float32), Ks[some].astype(np.float32), w, h)
        seen.append(
            gs_cull.cull(means, scales, quats, *cameras, opacities=opacities, blocks=blocks)
        )
    return Scene(name, viewmats, tuple(seen))
