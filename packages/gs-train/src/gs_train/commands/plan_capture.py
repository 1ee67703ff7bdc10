# SPDX-License-Identifier: Apache-2.0
"""A capture as training would load it, but for its photographs: cameras, points and the split."""

from __future__ import annotations

from gs_train.data.capture import Capture, CaptureView, frame_and_points, pinholes_of, split_of
from gs_train.data.colmap import find_model, read_model
from gs_train.data.unused import unused_lines
from gs_train.errors import InputError
from gs_train.options.config import FitConfig


def capture_without_photographs(run: FitConfig) -> Capture:
    """What :func:`gs_train.data.load_capture` would return for a run, reading no photograph.

    Raises:
        InputError: there is no model, or it holds fewer than 4 points or no image to train on.
    """
    model = read_model(find_model(run.data))
    train, test = split_of([image.name for image in model.images], run.test_every, run.test_list)
    _, points, colors, notes = frame_and_points(model)
    if len(points) < 4:
        raise InputError(f"{run.data} must hold at least 4 points, got {len(points)}")
    pinholes = pinholes_of(model, run.max_side)
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
    notes += unused_lines(run.data, model)
    return Capture(run.data, views, points, colors, train, test, notes=tuple(notes))
