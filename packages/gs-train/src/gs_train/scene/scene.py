# SPDX-License-Identifier: Apache-2.0
"""A capture as training needs it: in the training frame, with views on the renderer's device."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from gs_train.data import Capture, CaptureView
from gs_train.data.frame import Frame
from gs_train.data.point_ply import read_point_ply
from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import TaskProgress, task_progress
from gs_train.names import encoded, printable
from gs_train.options.config import FitConfig
from gs_train.renderers import Rows, View
from gs_train.rows import counter_random
from gs_train.rows.counter_random import Purpose
from gs_train.rows.morton import morton_order
from gs_train.scene.camera_paths import Posed
from gs_train.scene.export_frame import TRANSFORM, read_transform
from gs_train.scene.initialize import rows_from_cloud, rows_from_points
from gs_train.scene.thinning import thinned_order


@dataclass(frozen=True)
class Scene:
    """A capture, the frame that it is trained in, and its views in that frame.

    Attributes:
        views: one for each of the capture's, on the renderer's device.
    """

    capture: Capture
    frame: Frame
    views: tuple[View, ...]

    @classmethod
    def load(cls, capture: Capture, device: torch.device, frame: Frame | None = None) -> Scene:
        """Bring a capture into ``frame``, or into the one that its cameras suggest."""
        if frame is None:
            frame = Frame.from_cameras(np.stack([v.world_to_camera for v in capture.views]))
        views = tuple(_view_of(view, frame).to(device) for view in capture.views)
        return cls(capture, frame, views)

    def initial_rows(self, config: FitConfig, stop: StopRequest) -> Rows:
        """A Gaussian for each point (a random choice above the cap), along the Morton curve.

        With ``--init`` for each point of that file, thinned to the cap; see
        :func:`gs_train.scene.initialize.rows_from_cloud` for how these are stored.

        Raises:
            InputError: that file, or its points, cannot be used.
            Interrupted: a stop was asked for meanwhile.
        """
        if config.init is not None:
            return self._rows_of_file(config, config.init, stop)
        points, colors = self.capture.points, self.capture.colors
        limit = config.row_cap
        if limit is not None and len(points) > limit:
            order = counter_random.permutation(
                config.seed, Purpose.INITIAL_POINTS, 0, len(points), device="cpu"
            )
            chosen = order[:limit].sort().values.numpy()
            points, colors = points[chosen], colors[chosen]
        rows = rows_from_points(
            self.frame.points_in(points),
            colors,
            sh_degree=config.sh_degree,
            opacity=config.by_strategy("init_opacity"),
            scale=config.by_strategy("init_scale"),
            seed=config.seed,
        )
        if config.resort_every:
            order = morton_order(rows["means"])
            rows = {name: values[order] for name, values in rows.items()}
        return rows

    def _rows_of_file(self, config: FitConfig, path: Path, stop: StopRequest) -> Rows:
        def told(progress: TaskProgress) -> Callable[[int, int], None]:
            def report(done: int, total: int) -> None:
                stop.check(printable(f"the reading of {path}"))
                progress.update(done, total)

            return report

        moved = self.cloud_transform(path)
        with task_progress("reading points") as progress:
            cloud = read_point_ply(path, transform=moved, report=told(progress))
        if cloud.n_dropped:
            why = "not finite, or too far away for float32"
            what = f"{cloud.n_dropped:,} points left out: {why}"
            print(printable(f"{path}: {what}"), file=sys.stderr)
        if len(cloud.points) < 4:
            raise InputError(f"--init {path} must hold at least 4 points, got {len(cloud.points)}")
        order = torch.from_numpy(thinned_order(cloud.points, config.row_cap))
        with task_progress("finding neighbours of points") as progress:
            return rows_from_cloud(
                torch.from_numpy(cloud.points)[order].numpy(),  # torch gathers with all cores
                torch.from_numpy(cloud.colors)[order].numpy(),
                sh_degree=config.sh_degree,
                opacity=config.by_strategy("init_opacity"),
                scale=config.by_strategy("init_scale"),
                seed=config.seed,
                report=told(progress),
            )

    def cloud_transform(
        self, path: Path, *, is_told: bool = True
    ) -> Callable[[np.ndarray], np.ndarray]:
        """From the coordinates of a PLY file's points to the training frame, (n, 3) float64.

        Args:
            is_told: whether a transform beside the file is said on stderr.

        Raises:
            InputError: that transform cannot be used.
        """
        transform = read_transform(path)
        if transform is not None and is_told:
            print(f"{path}: points are moved as {TRANSFORM} beside it says", file=sys.stderr)

        def moved(points: np.ndarray) -> np.ndarray:
            if transform is not None:
                shift, scale = transform
                points = points / scale - shift
            return self.frame.points_in(points)

        return moved


def capture_digest(capture: Capture) -> str:
    """Hex digest of what a run was trained on: names, sizes, cameras, poses, masks, depth
    maps and the split."""
    digest = hashlib.sha256()
    for view in capture.views:
        digest.update(encoded(view.name) + f"\0{view.width}\0{view.height}\0".encode())
        digest.update(view.K.tobytes() + view.world_to_camera.tobytes())
        if view.mask is not None:
            digest.update(b"carved" if view.mask.carves else b"ignored")
        if view.depth is not None:
            digest.update(repr(tuple(view.depth.of)).encode())
    digest.update(repr((capture.train, capture.test)).encode())
    return digest.hexdigest()


def _view_of(view: CaptureView, frame: Frame) -> View:
    """With what its depth map means there."""
    posed = view_in_frame(view, frame)
    if view.depth is None:
        return posed
    return replace(posed, inverse_depth=view.depth.of.in_frame(frame.scale))


def view_in_frame(camera: Posed, frame: Frame) -> View:
    """A posed camera of the capture as a view of the training frame."""
    pose = frame.pose_in(np.asarray(camera.world_to_camera, dtype=np.float64))
    return View(
        name=camera.name,
        viewmat=torch.from_numpy(pose).float(),
        K=torch.from_numpy(np.asarray(camera.K)).float(),
        width=camera.width,
        height=camera.height,
    )
