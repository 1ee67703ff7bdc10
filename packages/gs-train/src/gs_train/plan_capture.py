# SPDX-License-Identifier: Apache-2.0
"""A capture as training would load it, but for its photographs: cameras, points and the split."""

from __future__ import annotations

from gs_train.config import FitConfig
from gs_train.data.capture import Capture, CaptureView, test_indices
from gs_train.data.colmap import find_model, read_model, read_points
from gs_train.data.distortion import Pinhole, is_distorted, undistorted_pinhole
from gs_train.errors import InputError


def capture_without_photographs(run: FitConfig) -> Capture:
    """What :func:`gs_train.data.load_capture` would return for a run, reading no photograph.

    Raises:
        InputError: there is no model, or it holds fewer than 4 points or no image to train on.
    """
    model = read_model(find_model(run.data))
    points, colors = read_points(model.folder)
    if len(points) < 4:
        raise InputError(f"{run.data} must hold at least 4 points, got {len(points)}")
    pinholes = {
        id: undistorted_pinhole(camera, run.max_side)
        if is_distorted(camera)
        else Pinhole.of(camera, run.max_side)
        for id, camera in model.cameras.items()
    }
    views = tuple(
        CaptureView(
            image.name,
            run.data / "images" / image.name,
            image.world_to_camera,
            (pinhole := pinholes[image.camera_id]).K,
            pinhole.width,
            pinhole.height,
        )
        for image in model.images
    )
    test = test_indices([view.name for view in views], run.test_every, run.test_list)
    train = tuple(sorted(set(range(len(views))) - set(test)))
    if not train:
        raise InputError(f"training must be left at least one image, got {len(views)} in all")
    return Capture(run.data, views, points, colors, train, test)
