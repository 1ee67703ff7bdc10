# SPDX-License-Identifier: Apache-2.0
"""What ``fit`` would do with a capture, up to the first step, without its photographs' pixels."""

from __future__ import annotations

import dataclasses
from typing import Any

from gs_train.commands.check_capture import CaptureFacts
from gs_train.data.capture import Capture, view_of
from gs_train.data.examine import Examined, examine
from gs_train.data.masks import Mode, mask_of
from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config import FitConfig
from gs_train.renderers import Renderer
from gs_train.runs.captures import require_windows
from gs_train.runs.offload import choice_of_blocks, workload_of
from gs_train.runs.renderer import renderer_for
from gs_train.scene.scene import Scene
from gs_train.sizing.choice import choose, expected_rows
from gs_train.sizing.forecasts import need, room_under
from gs_train.sizing.memory import caps_of
from gs_train.sizing.photographs import decoded_bytes

_MOST_COUNTED = 200_000
"""Points whose part in views is counted: of more, every so many-th, and counts are scaled."""


def start_of_fit(run: FitConfig, facts: CaptureFacts) -> dict[str, Any]:
    """What ``check --json`` prints of the run that would be started.

    Raises:
        InputError: as ``fit`` would, in its order, but for what is about its folder. Memory is
            judged from a part of the points where there are many.
    """
    renderer = renderer_for(run)
    found = examine(
        dataclasses.replace(facts.source, points=facts.points_of),
        max_side=run.longest_side,
        test_every=run.test_every,
        test_list=run.test_list,
        max_pixels=run.max_pixels,
        skip_broken=run.skip_broken,
        mask=run.mask,
        depths=run.depth_weight is not None,
        allow_missing=run.allow_missing,
        looks=lambda: facts.looks,
    )
    if found.broken >= set(found.train):
        raise InputError(
            f"training must be left one photograph that can be read, got "
            f"{len(found.broken)} broken of {len(found.model.images)}"
        )
    capture = _capture(found, run.mask)
    require_windows(capture)
    sides = sorted(
        {(view.width, view.height) for view in capture.views},
        key=lambda side: side[0] * side[1],
    )
    limit = run.row_cap
    n_rows = len(found.points) if limit is None else min(limit, len(found.points))
    return {
        "n_train": len(found.train),
        "n_test": len(found.test),
        "n_broken": len(found.broken),
        "n_left_out": len(facts.source.model.images) - len(found.model.images),
        "changed": list(found.changed),
        "n_masked": sum(view.mask is not None for view in capture.views),
        "n_depths": sum(view.depth is not None for view in capture.views),
        "exposure": run.exposure,
        "background": run.background,
        "smallest": list(sides[0]),
        "largest": list(sides[-1]),
        "n_made": len(found.made),
        "decoded_bytes": decoded_bytes(capture),
        "steps": run.steps,
        "batch_size": run.batch_size,
        "n_rows": n_rows,
        "n_rows_expected": expected_rows(run, n_rows),
        "renderer": renderer.name,
        "device": str(renderer.device),
        **_placing(run, capture, renderer, n_rows),
    }


def _capture(found: Examined, mask: Mode) -> Capture:
    masks = [
        None
        if index in found.broken
        else mask_of(found.masks[index], path, has_alpha=index in found.with_alpha, mode=mask)
        for index, path in enumerate(found.source.photographs)
    ]
    views = tuple(
        view_of(image, found.pinholes[image.camera_id], path, mask=mask_of_view, depth=depth)
        for image, path, mask_of_view, depth in zip(
            found.model.images, found.source.photographs, masks, found.depths
        )
    )
    every = max(1, -(-len(found.points) // _MOST_COUNTED))
    return Capture(
        found.source.folder,
        views,
        found.points[::every],
        found.colors[::every],
        found.train,
        found.test,
    )


def _placing(run: FitConfig, capture: Capture, renderer: Renderer, n_rows: int) -> dict[str, Any]:
    """The preset and its memory, as ``fit`` would choose it for so many first Gaussians."""
    scene = Scene.load(capture, renderer.device)
    rows = scene.initial_rows(run, StopRequest())
    if run.is_stored:
        choice = choice_of_blocks(run, scene, n_rows, renderer.device)
        assert choice.blocks is not None
        return {
            "preset": choice.preset.name,
            "reason": choice.reason,
            "device_bytes": choice.blocks.device_bytes,
            "host_bytes": choice.blocks.host_bytes,
        }
    caps = caps_of(run, renderer.device)
    work = workload_of(run, scene, rows, renderer, n_rows=n_rows)
    choice = choose(run, work, caps)
    later = work.with_rows(expected_rows(run, n_rows))
    wanted = need(choice.preset, later, room_under(choice.preset, later, choice.limits))
    return {
        "preset": choice.preset.name,
        "reason": choice.reason,
        "device_bytes": wanted.device_bytes,
        "host_bytes": wanted.host_bytes,
    }
