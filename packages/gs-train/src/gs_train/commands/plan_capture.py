# SPDX-License-Identifier: Apache-2.0
"""A capture as training would load it, but for its photographs: cameras, points and the split."""

from __future__ import annotations

from gs_train.data.capture import Capture, view_of
from gs_train.data.examine import frame_and_points, pinholes_of, split_of
from gs_train.data.photographs import camera_sizes
from gs_train.data.readers.choose import read_source
from gs_train.data.resized import model_of_sizes
from gs_train.errors import InputError
from gs_train.options.config import FitConfig


def capture_without_photographs(run: FitConfig) -> Capture:
    """What :func:`gs_train.data.load_capture` would return for a run, from one header a camera.

    Raises:
        InputError: there is no model, or it holds fewer than 4 points or no image to train on.
    """
    source = read_source(run.data)
    model, scaled = model_of_sizes(source.model, camera_sizes(source.model, source.photographs))
    names = [image.name for image in model.images]
    train, test = split_of(names, run.test_every, run.test_list, source.held_out)
    _, points, colors, notes = frame_and_points(model, source.points)
    if len(points) < 4:
        raise InputError(f"{run.data} must hold at least 4 points, got {len(points)}")
    pinholes = pinholes_of(model, run.max_side)
    views = tuple(
        view_of(image, pinholes[image.camera_id], path)
        for image, path in zip(model.images, source.photographs)
    )
    notes += (*scaled, *source.notes)
    return Capture(source.folder, views, points, colors, train, test, notes=tuple(notes))
