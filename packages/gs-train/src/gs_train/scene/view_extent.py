# SPDX-License-Identifier: Apache-2.0
"""How far away the training views see something: what ``--means-extent view`` scales a rate by."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gs_train.data.point_ply import PlyPoints
from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.renderers import View
from gs_train.scene.first_splats import FirstSplats
from gs_train.scene.scene import Scene

_TO_SPARE = 1.1
"""As in the extent of the cameras, so that both agree where cameras stand around an object."""

_MOST_POINTS, _MOST_VIEWS = 1 << 18, 64
_CELLS = 32
_PIECE = 1 << 12


def with_means_extent(scene: Scene, config: FitConfig, splats: FirstSplats | None = None) -> Scene:
    """A scene that begins, whose frame has the extent of ``--means-extent``.

    With ``view``, points are those of the reconstruction, or of ``--init``.

    Args:
        splats: of ``--init``, where that holds Gaussians.

    Raises:
        InputError: no view sees a point, or the file of ``--init`` cannot be read.
    """
    if config.means_extent == "cameras":
        return scene
    views = [scene.views[k] for k in _evenly(scene.capture.train, _MOST_VIEWS)]
    points = _points_of(scene, config) if splats is None else splats.means(_MOST_POINTS)
    extent = view_extent(views, points)
    if extent is None:
        raise InputError(
            "--means-extent view needs points that training views see, and they see none of "
            f"{config.init or 'the reconstruction'}: take --means-extent cameras"
        )
    frame = dataclasses.replace(scene.frame, means_extent=extent)
    return dataclasses.replace(scene, frame=frame)


def view_extent(views: Sequence[View], points: NDArray[np.float64]) -> float | None:
    """1.1 times the median, over views, of the median distance from a view to what it sees.

    A view sees the nearest point in each of 32 x 32 cells of its image.

    Args:
        views: at least one.
        points: (P, 3), in the views' world.

    Returns:
        World units, above 0; None where no view sees a point.
    """
    medians = [np.median(seen) for view in views if len(seen := _distances(view, points))]
    extent = _TO_SPARE * float(np.median(medians)) if medians else 0.0
    return extent if 0 < extent < np.inf else None


def _distances(view: View, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of the nearest point in each cell that has any."""
    pose = view.viewmat.cpu().double().numpy()
    K = view.K.cpu().double().numpy()
    local = points @ pose[:3, :3].T + pose[:3, 3]
    local = local[local[:, 2] > 0]
    with np.errstate(over="ignore"):  # points next to the camera's plane
        u = (local[:, 0] / local[:, 2] * K[0, 0] + K[0, 2]) / view.width * _CELLS
        v = (local[:, 1] / local[:, 2] * K[1, 1] + K[1, 2]) / view.height * _CELLS
    shows = (u >= 0) & (u < _CELLS) & (v >= 0) & (v < _CELLS)
    cells = v[shows].astype(np.int64) * _CELLS + u[shows].astype(np.int64)
    nearest = np.full(_CELLS * _CELLS, np.inf)
    np.minimum.at(nearest, cells, np.linalg.norm(local[shows], axis=1))
    return nearest[np.isfinite(nearest)]


def _points_of(scene: Scene, config: FitConfig) -> NDArray[np.float64]:
    if config.init is None:
        points = scene.capture.points
        return scene.frame.points_in(points[_evenly(range(len(points)), _MOST_POINTS)])
    moved = scene.cloud_transform(config.init, is_told=False)
    with PlyPoints(config.init, transform=moved, dtype=np.float64, piece_rows=_PIECE) as file:
        some = range(file.n_pieces)
        pieces = some if file.is_text else _evenly(some, _MOST_POINTS // _PIECE)
        points = np.concatenate([np.empty((0, 3)), *(file.read(k).points for k in pieces)])
    return points[_evenly(range(len(points)), _MOST_POINTS)]


def _evenly(values: Sequence[int], most: int) -> NDArray[np.int64]:
    """At most so many of them, evenly over their order."""
    some = np.linspace(0, len(values) - 1, min(len(values), most)).astype(np.int64)
    return np.asarray(values, np.int64)[some]
