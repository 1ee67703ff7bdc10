# SPDX-License-Identifier: Apache-2.0
"""The photographs and poses that a run trains on, opened and checked."""

from __future__ import annotations

from pathlib import Path

from gs_train.data import Capture, load_capture
from gs_train.errors import InputError
from gs_train.losses.ssim import WINDOW
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import task_progress
from gs_train.options.config import FitConfig
from gs_train.runs.all_ranks import by_first_unless_stopped
from gs_train.runs.folder import RunFolder
from gs_train.scene.scene import capture_digest
from gs_train.world import World


def open_capture(
    config: FitConfig, folder: RunFolder, stop: StopRequest, *, data: Path | None = None
) -> Capture:
    """The run's photographs and poses; images are prepared when they are not in its cache.

    Args:
        data: where the capture is now, when not where the configuration says.

    Raises:
        InputError: see :func:`gs_train.data.load_capture`; or an image is smaller than the 11
            pixels of SSIM's window.
        Interrupted: a stop was asked for while images were prepared.
    """
    with task_progress("preparing image") as progress:

        def report(done: int, total: int) -> None:
            stop.check("the preparation of images; what is ready is kept")
            progress.update(done, total)

        capture = load_capture(
            data or config.data,
            cache_dir=folder.image_cache,
            max_side=config.longest_side,
            test_every=config.test_every,
            test_list=config.test_list,
            max_pixels=config.max_pixels,
            skip_broken=config.skip_broken,
            allow_missing=config.allow_missing,
            mask=config.mask,
            depths=config.depth_weight is not None,
            background=config.background,
            progress=report,
        )
    require_windows(capture)
    return capture


def require_windows(capture: Capture) -> None:
    """Raise InputError where an image is smaller than the 11 pixels of SSIM's window."""
    for view in capture.views:
        if min(view.width, view.height) < WINDOW:
            raise InputError(
                f"images must be at least {WINDOW} pixels wide and high, {view.name} is "
                f"{view.width}x{view.height} here"
            )


def capture_of_all(
    config: FitConfig,
    folder: RunFolder,
    stop: StopRequest,
    early: StopRequest,
    given: Capture | None,
    world: World,
) -> Capture:
    """The photographs and poses, the same on all ranks; rank 0 prepares images. A collective.

    Args:
        stop: looked at by rank 0.
        early: by the others, which find all images prepared.
        given: from Python; None: the one that the options name.

    Raises:
        InputError: see :func:`open_capture`.
        Interrupted: rank 0 was asked to stop.
        CommonError: ranks find different captures.
    """
    found: list[Capture] = []
    by_first_unless_stopped(world, lambda: found.append(_opened(config, folder, stop, given)))
    capture = found[0] if found else _opened(config, folder, early, given)
    world.agree("views, poses and held-out images", capture_digest(capture))
    return capture


def _opened(
    config: FitConfig, folder: RunFolder, stop: StopRequest, given: Capture | None
) -> Capture:
    if given is None:
        return open_capture(config, folder, stop)
    require_windows(given)
    return given
