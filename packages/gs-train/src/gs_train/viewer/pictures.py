# SPDX-License-Identifier: Apache-2.0
"""Pictures of the scene for a page: its rows drawn, coloured, and set beside a photograph."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from gs_train.engine.background import colour_of_scores
from gs_train.files.pictures import FULL_ERROR, error_colors, to_uint8
from gs_train.losses.channels import DEPTH_BYTES
from gs_train.losses.mask import CHANNELS, KEPT
from gs_train.machine.out_of_memory import memory_that_ran_out
from gs_train.renderers import View
from gs_train.rows.view_parts import Quantity, view_parts
from gs_train.viewer.colours import colours_note, exposure_of
from gs_train.viewer.opened import OpenedScene
from gs_train.viewer.photographs import Photographs
from gs_train.viewer.request import Panel, Picture, Request, reduced

_PART_PIXELS = {"cpu": 1 << 16, "cuda": 1 << 24}
"""Of one part: about a tenth of a second for the CPU renderer; a GPU draws a view at once."""

_LEAST_ROWS = 1024  # of a drawing, where memory keeps running out
_PAPER = 24
_GAP = 6  # pixels between panels
_MOST_STRETCH, _MOST_SIDE = 8, 1 << 15  # of what lies around a picture, by its longer side
_DEPTH_STOPS = np.array(
    [(250, 240, 200), (245, 170, 80), (215, 80, 80), (130, 40, 120), (50, 25, 95), (10, 8, 30)],
    float,
)


class _Truth(NamedTuple):
    """A photograph in the size of a picture.

    Attributes:
        colours: (h, w, 3) uint8, black where a mask hides pixels.
        kept: (h, w) bool: what no mask hides.
    """

    colours: NDArray[np.uint8]
    kept: NDArray[np.bool_]


class Pictures:
    """Draws requests; a `Draw`.

    Args:
        scene: gives the scene of the moment.
        photographs: of the run; None: there are none.
        part_pixels: of one part; None: as suits the renderer.
    """

    def __init__(
        self,
        scene: Callable[[], OpenedScene],
        photographs: Photographs | None,
        *,
        part_pixels: int | None = None,
    ) -> None:
        self._scene = scene
        self._photographs = photographs
        self._part_pixels = part_pixels
        self._most_rows: int | None = None  # below the scene's, where memory ran out

    def __call__(
        self, request: Request, scale: float, is_stale: Callable[[], bool]
    ) -> Picture | None:
        """See `Draw`. Where memory runs out, smaller parts are drawn from now on."""
        start = time.perf_counter()
        view = reduced(request.view, scale)
        panels: dict[Panel, NDArray[np.uint8]] = {}
        note = ""
        if request.panels != ("photograph",):
            drawn = self._drawn(request, view, is_stale)
            if drawn is None:
                return None
            panels["render"], note = colored(drawn, request.quantity, self._scene().frame.scale)
            if request.quantity == "color":
                note = colours_note(self._scene(), request)
        if request.panels != ("render",):
            truth, trouble = self._photograph(request, view)
            if truth is None:
                note = trouble
            else:
                panels["photograph"] = truth.colours
            if truth is not None and "render" in panels:
                panels["error"], error = _error(truth, panels["render"])
                note = f"{error}; {note}" if note else error
        if request.box is not None:
            note = f"cropped; {note}" if note else "cropped"
        shown = [panels[name] for name in request.panels if name in panels]
        pixels = shown[0] if len(shown) == 1 else joined(shown, view.height, request.canvas)
        if request.photograph is not None:
            pixels = on_canvas(pixels, request.canvas)
        return Picture(pixels, scale == 1, time.perf_counter() - start, note)

    def _photograph(self, request: Request, view: View) -> tuple[_Truth | None, str]:
        """In the size of the view."""
        if self._photographs is None or request.photograph is None:
            return None, "no photographs belong to this scene"
        photograph, trouble = self._photographs.of(request.photograph)
        if photograph is None:
            return None, trouble
        return _truth(photograph, (view.width, view.height)), trouble

    def _drawn(
        self, request: Request, view: View, is_stale: Callable[[], bool]
    ) -> NDArray[Any] | None:
        """(H, W, C) of the quantity, colours as bytes."""
        scene = self._scene()
        while True:
            most_rows = self._most_rows or min(scene.most_rows, scene.model.n_rows)
            try:
                return self._assembled(scene, request, view, most_rows, is_stale)
            except Exception as error:
                if memory_that_ran_out(error) is None or most_rows <= _LEAST_ROWS:
                    raise
                self._most_rows = max(_LEAST_ROWS, most_rows // 2)
            if scene.renderer.device.type == "cuda":
                torch.cuda.empty_cache()

    def _assembled(
        self,
        scene: OpenedScene,
        request: Request,
        view: View,
        most_rows: int,
        is_stale: Callable[[], bool],
    ) -> NDArray[Any] | None:
        """`_drawn` from parts with so many rows; None where it is stale."""
        whole: NDArray[Any] | None = None
        device = scene.renderer.device
        for rect, part in view_parts(
            scene.model,
            view.to(device),
            scene.renderer,
            quantity=request.quantity,
            background=colour_of_scores(scene.background),
            exposure=exposure_of(scene, request),
            box=request.box,
            most_rows=most_rows,
            most_pixels=self._part_pixels or _PART_PIXELS[device.type],
        ):
            pixels = to_uint8(part) if request.quantity == "color" else part.cpu().numpy()
            if whole is None:
                whole = np.empty((view.height, view.width, pixels.shape[2]), pixels.dtype)
            whole[rect.y0 : rect.y1, rect.x0 : rect.x1] = pixels
            if (rect.x1, rect.y1) != (view.width, view.height) and is_stale():
                return None
        return whole


def _truth(photograph: NDArray[np.uint8], size: tuple[int, int]) -> _Truth:
    """A photograph, (H, W, 3) or with a mask or a depth map more, in another size."""
    height, width, n_channels = photograph.shape
    colours, states = photograph[..., :3], np.full((height, width), KEPT, np.uint8)
    if n_channels in (CHANNELS, CHANNELS + DEPTH_BYTES):
        states = np.where(photograph[..., 3] == KEPT, states, 0)
    if (width, height) != size:
        colours, states = _resized(colours, size), _resized(states, size)
    kept = states == KEPT  # no part of the pixel is hidden
    return _Truth(np.where(kept[..., None], colours, 0).astype(np.uint8), kept)


def _resized(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    return np.asarray(image.resize(size, Image.Resampling.BOX))


def _error(truth: _Truth, render: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], str]:
    """The error as colours, black where a mask hides the photograph; and a line about it."""
    error = np.abs(truth.colours.astype(np.float32) - render).mean(axis=2) / 255
    error[~truth.kept] = 0
    if not truth.kept.any():
        return error_colors(error), "the mask hides every pixel"
    mean = error[truth.kept].mean()
    return error_colors(error), f"mean error {mean:.4f}; pale: {FULL_ERROR:g} or more"


def colored(drawn: NDArray[Any], quantity: Quantity, scale: float) -> tuple[NDArray[np.uint8], str]:
    """A quantity as colours, and a line about what they mean.

    Args:
        drawn: (H, W, 3) uint8 of colours, else (H, W, 1) float32.
        scale: training units per unit of the capture, for depths.
    """
    if quantity == "color":
        return drawn, ""
    if quantity == "alpha":
        return to_uint8(np.repeat(drawn, 3, axis=2)), "black: nothing; white: opaque"
    depths = drawn[..., 0]
    there = depths[depths > 0]
    if not there.size:
        return np.zeros((*depths.shape, 3), np.uint8), "nothing is there"
    near, far = np.percentile(there, (2, 98))
    # Even steps of the inverse: what is near differs most.
    inverse = 1 / np.maximum(depths, 1e-6)
    place = (1 / near - inverse) / max(1 / near - 1 / far, 1e-9)
    stops = np.linspace(0, 1, len(_DEPTH_STOPS))
    channels = [np.interp(place, stops, column) for column in _DEPTH_STOPS.T]
    pixels = np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
    pixels[depths <= 0] = 0
    return pixels, f"depth {near / scale:.3g} (pale) to {far / scale:.3g} (dark)"


def joined(
    panels: list[NDArray[np.uint8]], height: int, canvas: tuple[int, int]
) -> NDArray[np.uint8]:
    """Panels of one size side by side, or one below the other where that leaves them larger."""
    if not panels:
        return np.full((height, height, 3), _PAPER, np.uint8)
    n, (h, w) = len(panels), panels[0].shape[:2]
    beside = min(canvas[0] / (n * w), canvas[1] / h)
    below = min(canvas[0] / w, canvas[1] / (n * h))
    axis = 1 if beside >= below else 0
    gap = np.full((h, _GAP, 3) if axis else (_GAP, w, 3), _PAPER, np.uint8)
    pieces = [piece for panel in panels for piece in (gap, panel)][1:]
    return np.concatenate(pieces, axis)


def on_canvas(pixels: NDArray[np.uint8], canvas: tuple[int, int]) -> NDArray[np.uint8]:
    """The picture in the middle of a larger one with the ratio of the canvas.

    In a canvas that is only a strip the larger one has another ratio: its sides are at most eight
    times the longer side of the picture, and at most 32,768. JPEG has no sides beyond 65,535.
    """
    h, w = pixels.shape[:2]
    most = min(_MOST_STRETCH * max(h, w), _MOST_SIDE)
    height = max(h, min(most, round(w * canvas[1] / canvas[0])))
    width = max(w, min(most, round(h * canvas[0] / canvas[1])))
    whole = np.full((height, width, 3), _PAPER, np.uint8)
    y, x = (height - h) // 2, (width - w) // 2
    whole[y : y + h, x : x + w] = pixels
    return whole
