# SPDX-License-Identifier: Apache-2.0
"""Pictures to look at: truth, render and error side by side."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from gs_train.files.atomic import replacing

FULL_ERROR = 0.25
"""The error that gets the brightest colour."""

_STOPS = np.array(
    [(0, 0, 0), (45, 20, 90), (130, 35, 120), (215, 70, 70), (250, 150, 50), (255, 250, 200)], float
)
_GAP = 6
_LABEL = 20
_PAPER, _INK = (24, 24, 24), (230, 230, 230)


def to_uint8(image: Any) -> np.ndarray:
    """An image as bytes.

    Args:
        image: (H, W, 3) torch tensor (any device) or numpy array; uint8, or floating in [0, 1],
            clamped and rounded; NaN becomes 0.

    Returns:
        (H, W, 3) uint8 numpy.
    """
    if isinstance(image, Tensor):
        image = image.detach()
        if image.is_floating_point():
            # On its device: a quarter of the bytes come over the link.
            scaled = image.float().nan_to_num(nan=0.0) * 255
            image = scaled.round().clamp(0, 255).to(torch.uint8)
        image = image.cpu().numpy()
    if image.dtype == np.uint8:
        return image
    scaled = np.nan_to_num(np.asarray(image, np.float32), nan=0.0) * 255
    return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)


def error_colors(error: np.ndarray) -> np.ndarray:
    """Colours of an error: black over violet, red and orange to pale yellow, ever brighter.

    Args:
        error: (H, W) in [0, 1]; ``FULL_ERROR`` and more are pale yellow.

    Returns:
        (H, W, 3) uint8.
    """
    position = np.clip(error / FULL_ERROR, 0, 1)
    stops = np.linspace(0, 1, len(_STOPS))
    channels = [np.interp(position, stops, _STOPS[:, channel]) for channel in range(3)]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)


def write_comparison(
    path: str | Path,
    views: Iterable[tuple[str, Any, Any]],
    *,
    title: str = "render",
    max_side: int = 640,
) -> None:
    """Write truth | render | error of a few views, one under the other, as one PNG.

    The error is the mean over the channels of the absolute difference of the images as they are
    shown (8 bits), at full size; then the pictures are reduced.

    Args:
        path: the file, replaced when it is complete.
        views: (name, truth, render) of at least one view; images as ``to_uint8`` takes them.
        title: of the renders.
        max_side: pixels; larger images are reduced to it.

    Raises:
        ValueError: there is no view, or truth and render differ in shape.

    The same input gives the same bytes.
    """
    sheet = _sheet(views, title, max_side)
    with replacing(path) as file:
        sheet.save(file, format="PNG")


def comparison_jpeg(
    views: Iterable[tuple[str, Any, Any]], *, title: str = "render", max_side: int = 320
) -> bytes:
    """What :func:`write_comparison` writes, as the bytes of a small JPEG."""
    data = io.BytesIO()
    _sheet(views, title, max_side).save(data, format="JPEG", quality=88)
    return data.getvalue()


def _sheet(views: Iterable[tuple[str, Any, Any]], title: str, max_side: int) -> Image.Image:
    rows = [(name, _panels(name, truth, render, max_side)) for name, truth, render in views]
    if not rows:
        raise ValueError("views must hold at least one view, got none")
    width = max(sum(panel.width + _GAP for panel in panels) for _, panels in rows) + _GAP
    height = sum(panels[0].height + _LABEL + _GAP for _, panels in rows) + _GAP
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(13)
    y = _GAP
    for name, panels in rows:
        x = _GAP
        # Pillow's own font has glyphs for ASCII alone.
        titles = (ascii(name)[1:-1], title, f"|error| (pale = {FULL_ERROR:g} or more)")
        for each, panel in zip(titles, panels):
            draw.text((x, y), _fitted(each, panel.width, font), _INK, font)
            sheet.paste(panel, (x, y + _LABEL))
            x += panel.width + _GAP
        y += panels[0].height + _LABEL + _GAP
    return sheet


def _panels(name: str, truth: Any, render: Any, max_side: int) -> list[Image.Image]:
    truth, render = to_uint8(truth), to_uint8(render)
    if truth.shape != render.shape:
        raise ValueError(
            f"truth and render of {name} must have the same shape, got {truth.shape} "
            f"and {render.shape}"
        )
    error = np.abs(truth.astype(np.float32) - render).mean(axis=2) / 255
    panels = [Image.fromarray(pixels) for pixels in (truth, render, error_colors(error))]
    for panel in panels:
        panel.thumbnail((max_side, max_side), Image.Resampling.BOX)
    return panels


def _fitted(text: str, width: int, font: Any) -> str:
    """The end of ``text`` that fits: of a path, the file name matters most."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength("…" + text) > width:
        text = text[1:]
    return "…" + text
