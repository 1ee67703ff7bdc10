# SPDX-License-Identifier: Apache-2.0
"""Scores of held-out images, and some of the images to look at."""

from __future__ import annotations

import dataclasses
import io
import sys
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gs_train.data import BrokenPhotographError, read_image
from gs_train.files.pictures import to_uint8
from gs_train.losses.background import BLACK, Colour
from gs_train.losses.channels import without_depth
from gs_train.losses.lpips import Lpips
from gs_train.losses.mask import has_mask, kept_pixels
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import task_progress
from gs_train.names import printable
from gs_train.options.config import FitConfig
from gs_train.renderers import Renderer
from gs_train.rows.shown import ShownRows
from gs_train.rows.visible import render_view
from gs_train.runs.half_fit import right_half
from gs_train.runs.metrics import ImageScore, psnr, ssim
from gs_train.scene.scene import Scene

Picture = tuple[str, NDArray[np.uint8], NDArray[np.uint8]]
"""A view's printable name, its photograph and its render, both (H, W, 3)."""

N_PICTURES = 4
"""Views of which there are pictures, at most."""


def score_views(
    model: ShownRows,
    scene: Scene,
    indices: Sequence[int],
    *,
    renderer: Renderer,
    lpips: Lpips | None,
    stop: StopRequest,
    skip_broken: bool = False,
    background: Colour = BLACK,
    fits_colours: bool = False,
    is_quiet: bool = False,
) -> tuple[list[ImageScore], list[Picture]]:
    """Score renders of some views against their photographs.

    Args:
        indices: of the capture's views.
        lpips: None leaves that score out.
        stop: looked at between views.
        skip_broken: leave out views whose photograph cannot be read, with a line for each.
        background: behind the scene.
        fits_colours: also score right halves, with colours fitted on left halves.
        is_quiet: show no progress.

    Returns:
        One score a view, in order, under its printable name; and a few of the views evenly over
        their order, for :func:`gs_train.files.pictures.write_comparison`. Renders are clamped to
        [0, 1] and, for the scores, not rounded to 8 bits.
    """
    scores: list[ImageScore] = []
    pictures: list[Picture] = []
    shown = shown_of(indices)
    stream = io.StringIO() if is_quiet else None
    with task_progress("evaluating image", len(indices), stream=stream) as progress:
        for index in indices:
            stop.check("evaluation")
            view = scene.views[index]
            name = printable(view.name)
            try:
                photograph = torch.from_numpy(read_image(scene.capture.views[index]))
            except BrokenPhotographError as error:
                if not skip_broken:
                    raise
                print(not_scored(error), file=sys.stderr)
                continue
            image = render_view(model, view, renderer, background)
            score = score_of(index, name, image, photograph, lpips, fits_colours=fits_colours)
            if score is None:
                print(hidden(name), file=sys.stderr)
                continue
            scores.append(score)
            if index in shown:
                pictures.append(picture_of(name, image, photograph))
            progress.advance()
    return scores, pictures


def shown_of(indices: Sequence[int]) -> set[int]:
    """The views of which there are pictures."""
    return set(indices[:: max(1, -(-len(indices) // N_PICTURES))])


def score_of(
    index: int,
    name: str,
    image: Tensor,
    photograph: Tensor,
    lpips: Lpips | None,
    *,
    fits_colours: bool = False,
) -> ImageScore | None:
    """The scores of a render; None where a mask hides all of the photograph.

    PSNR and SSIM see the pixels that the mask keeps. LPIPS's network needs whole images: both have
    black in place of hidden pixels, and the distances at kept pixels count.

    Args:
        index: of the view.
        name: of the view, printable.
        image: (H, W, 3) float32 in [0, 1], on any device.
        photograph: (H, W, 3) uint8 on the CPU, or (H, W, 4) with a mask.
        fits_colours: also score the right half, with colours fitted on the left half.
    """
    photograph = without_depth(photograph).to(image.device)
    kept = None
    if has_mask(photograph):
        kept, photograph = kept_pixels(photograph), photograph[..., :3]
        if not kept.any():
            return None
    truth = photograph.float() / 255.0
    score = ImageScore(
        index=index,
        name=name,
        psnr=psnr(image, truth, kept),
        ssim=ssim(image, truth, kept),
        lpips=None if lpips is None else lpips(image, truth, kept),
    )
    half = right_half(image, truth, kept) if fits_colours else None
    if half is None:
        return score
    return dataclasses.replace(
        score,
        fitted_psnr=psnr(*half),
        fitted_ssim=ssim(*half),
        fitted_lpips=None if lpips is None else lpips(*half),
    )


def picture_of(name: str, image: Tensor, photograph: Tensor) -> Picture:
    """A view to look at; what a mask hides is black in both images."""
    photograph = without_depth(photograph)
    if not has_mask(photograph):
        return name, photograph.numpy(), to_uint8(image)
    kept, colours = kept_pixels(photograph), photograph[..., :3]
    render = torch.from_numpy(to_uint8(image)).where(kept, 0)
    return name, colours.where(kept, 0).numpy(), render.numpy()


def title_of_renders(config: FitConfig) -> str:
    """What renders of held-out views show: over which background, and in which colours."""
    parts = ["render"]
    if config.background != "black":
        parts.append("over white" if config.background == "white" else "over black")
    if config.exposure:
        parts.append("in the scene's own colours")
    return " ".join(parts)


def hidden(name: str) -> str:
    """A line about a view that a mask hides."""
    return f"not scored: the mask of {name} hides every pixel"


def not_scored(error: BrokenPhotographError) -> str:
    """A line about a view that ``--skip-broken`` leaves out."""
    return f"--skip-broken: not scored: {error}"
