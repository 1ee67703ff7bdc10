# SPDX-License-Identifier: Apache-2.0
"""What ``gs-train plan`` looks at: a capture's cameras, and Gaussians at some of its points."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from gs_train.config import FitConfig
from gs_train.data.capture import CaptureView, frame_and_points
from gs_train.data.colmap import find_model, read_model
from gs_train.data.colmap_records import Model
from gs_train.data.distortion import Pinhole, is_distorted, undistorted_pinhole
from gs_train.data.unused import unused_lines
from gs_train.engine.choose import statistics_bytes
from gs_train.engine.workload import Workload, measure_workload
from gs_train.errors import InputError
from gs_train.initialize import rows_from_points
from gs_train.renderers import Renderer, View
from gs_train.scene import view_in_frame

_MOST_POINTS = 200_000
"""Points that Gaussians are made of to look at: more change nothing but the time it takes."""


@dataclass(frozen=True)
class Sample:
    """A capture's cameras, and Gaussians at some of its points."""

    rows: dict[str, Tensor]
    views: list[View]
    n_points: int
    image_bytes: int

    @classmethod
    def of(cls, run: FitConfig, renderer: Renderer) -> Sample:
        model = read_model(find_model(run.data))
        cameras = _cameras(run, model)
        frame, points, colors, notes = frame_and_points(model)
        for line in (*notes, *unused_lines(run.data, model)):
            print(line, file=sys.stderr)
        if len(points) < 4:
            raise InputError(f"{run.data} must hold at least 4 points, got {len(points)}")
        chosen = np.linspace(0, len(points) - 1, min(len(points), _MOST_POINTS)).astype(np.int64)
        rows = rows_from_points(
            frame.points_in(points[chosen]),
            colors[chosen],
            sh_degree=run.sh_degree,
            opacity=run.by_strategy("init_opacity"),
            seed=run.seed,
        )
        return cls(
            rows={name: values.to(renderer.device) for name, values in rows.items()},
            views=[view_in_frame(camera, frame).to(renderer.device) for camera in cameras],
            n_points=len(points),
            image_bytes=sum(3 * camera.width * camera.height for camera in cameras),
        )

    def workload(
        self, run: FitConfig, renderer: Renderer, n_rows: int, *, batch_size: int | None = None
    ) -> Workload:
        cache = run.bytes_of("image_cache")
        assert cache is not None
        return measure_workload(
            self.rows,
            self.views,
            renderer,
            n_rows=n_rows,
            sh_degree=run.sh_degree,
            batch_size=batch_size or run.batch_size,
            image_cache=min(cache, self.image_bytes),
            statistics_bytes=statistics_bytes(run),
            seed=run.seed,
        )


def _cameras(run: FitConfig, model: Model) -> list[CaptureView]:
    pinholes = {
        id: undistorted_pinhole(camera, run.max_side)
        if is_distorted(camera)
        else Pinhole.of(camera, run.max_side)
        for id, camera in model.cameras.items()
    }
    return [
        CaptureView(
            image.name,
            run.data / "images" / image.name,
            image.world_to_camera,
            (pinhole := pinholes[image.camera_id]).K,
            pinhole.width,
            pinhole.height,
        )
        for image in model.images
    ]
