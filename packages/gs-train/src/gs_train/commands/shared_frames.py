# SPDX-License-Identifier: Apache-2.0
"""Frames that several ranks draw together and rank 0 writes, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from gs_train.files.agreement import by_first
from gs_train.files.pictures import to_uint8
from gs_train.losses.background import BLACK, Colour
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import task_progress
from gs_train.ranks.pictures import sent_to_first
from gs_train.ranks.view_rounds import ViewRounds
from gs_train.renderers import Renderer, View
from gs_train.rows.operations import Model
from gs_train.scene.camera_paths import PathCamera
from gs_train.world import World


def cameras_of_first(world: World, cameras: Callable[[], Sequence[PathCamera]]) -> list[PathCamera]:
    """The cameras that rank 0 finds, on all ranks to the bit. A collective.

    Raises:
        CommonError: rank 0 met an InputError; on all ranks.
    """
    plain = by_first(
        world,
        lambda: [
            [of.name, of.world_to_camera.tolist(), of.K.tolist(), of.width, of.height]
            for of in cameras()
        ],
    )
    return [
        PathCamera(name, np.array(pose), np.array(K), width, height)
        for name, pose, K, width, height in plain
    ]


def frames_of_ranks(
    model: Model,
    views: Sequence[View],
    renderer: Renderer,
    world: World,
    stop: StopRequest,
    background: Colour = BLACK,
) -> Iterator[NDArray[np.uint8]]:
    """Draw views in rounds. A collective: all ranks go through it to its end.

    Args:
        model: this rank's rows.
        views: the same on all ranks, on the renderer's device.
        renderer: it has ``records``.
        stop: of this process; all ranks stop where one is asked to.
        background: behind the scene.

    Returns:
        On rank 0 an iterator over the frames, (H, W, 3), with the bytes of one rank's; elsewhere
        over nothing.
    """
    rounds = ViewRounds(model, renderer, world, stop=stop, background=background)
    with task_progress("rendering frame", len(views)) as progress:
        for k, image in enumerate(rounds.images(views)):
            of = views[k * world.size : (k + 1) * world.size]
            idle = world.size - len(of)
            shapes = [*((view.height, view.width) for view in of), *[None] * idle]
            yield from sent_to_first(None if image is None else to_uint8(image), shapes, world)
            progress.update(min((k + 1) * world.size, len(views)))
