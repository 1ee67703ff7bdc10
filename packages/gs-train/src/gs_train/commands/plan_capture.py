# SPDX-License-Identifier: Apache-2.0
"""A capture as training would load it, but for its photographs: cameras, points and the split."""

from __future__ import annotations

from gs_train.data.capture import Capture, view_of
from gs_train.data.depths import find_depths
from gs_train.data.examine import frame_and_points, pinholes_of, reduced_line, split_of
from gs_train.data.left_out import chosen
from gs_train.data.masks import find_masks, mask_of
from gs_train.data.photographs import camera_headers
from gs_train.data.readers.choose import read_source
from gs_train.data.resized import model_of_sizes
from gs_train.errors import InputError
from gs_train.names import printable
from gs_train.options.config import FitConfig


def capture_without_photographs(run: FitConfig) -> Capture:
    """What :func:`gs_train.data.load_capture` would return for a run, from one header a camera.

    Raises:
        InputError: there is no model, or it holds fewer than 4 points or no image to train on.
    """
    source = read_source(run.data)
    every_name = [image.name for image in source.model.images]
    if run.allow_missing:
        there = [i for i, path in enumerate(source.photographs) if path.is_file()]
        source = chosen(source, there) if there else source
    headers = camera_headers(source.model, source.photographs)
    sizes = [None if header is None else header.size for header in headers]
    model, scaled = model_of_sizes(source.model, sizes)
    names = [image.name for image in model.images]
    train, test = split_of(
        names, run.test_every, run.test_list, source.held_out, listable=every_name
    )
    _, points, colors, notes = frame_and_points(model, source.points)
    if len(points) < 4:
        raise InputError(f"{run.data} must hold at least 4 points, got {len(points)}")
    pinholes = pinholes_of(model, run.longest_side)
    reduced = reduced_line(model, pinholes, run.longest_side)
    masks, masked = find_masks(source, run.mask)
    depths, told = find_depths(source, train, wanted=run.depth_weight is not None)
    # Photographs of one camera are taken to be alike.
    with_alpha = {
        image.camera_id
        for image, header in zip(model.images, headers)
        if header is not None and header.has_alpha
    }
    views = tuple(
        view_of(
            image,
            pinholes[image.camera_id],
            path,
            mask=mask_of(mask, path, has_alpha=image.camera_id in with_alpha, mode=run.mask),
            depth=depth,
        )
        for image, path, mask, depth in zip(model.images, source.photographs, masks, depths)
    )
    notes += (*scaled, *reduced, *source.notes, *map(printable, (*masked, *told)))
    return Capture(source.folder, views, points, colors, train, test, notes=tuple(notes))
