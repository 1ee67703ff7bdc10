# SPDX-License-Identifier: Apache-2.0
"""Masks of photographs: where they are found, and which pixels they keep.

In an image of a mask, black hides and any other value keeps, as COLMAP and nerfstudio have it. Of
an alpha channel, only what is wholly opaque is kept. What an option makes of hidden pixels is in
`Mode`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gs_train.data.pixels import decode_alpha, decode_nonzero
from gs_train.data.readers.source import Source
from gs_train.data.unused import found_line
from gs_train.errors import InputError
from gs_train.losses.background import BackgroundKind
from gs_train.losses.mask import CARVED, IGNORED, KEPT

Mode = Literal["auto", "ignore", "carve", "off"]
"""What hidden pixels are: ignored, to be transparent, or photographed like all others. ``auto``
ignores what images of masks hide, and takes transparent pixels for black ones."""

Kind = Literal["image", "alpha", "plane"]
"""``image`` of a mask; ``alpha`` channel of a photograph; ``plane`` made of either."""

FOLDERS = ("masks", "mask")
"""Of a capture; the first that is there holds the masks."""

WHOLE = 255
"""Of a pixel of a plane that is kept; 0 is hidden, and between lies what is partly either."""

MASK_DTYPES = (np.dtype(bool), np.dtype(np.uint8))
"""Of masks that are given as arrays."""

_NONE_USED = "every pixel is trained on"
_NONE_NAMED = "no PNG file there has the name of a photograph; every pixel is trained on"


@dataclass(frozen=True)
class Mask:
    """The file that the mask of a view is in.

    Attributes:
        path: of the file that is read.
        source: the file that ``path`` was made from; else the same.
        kind: of the file.
        carves: whether hidden pixels are to be transparent.
    """

    path: Path
    source: Path
    kind: Kind
    carves: bool

    def states(self, size: tuple[int, int]) -> NDArray[np.uint8]:
        """(height, width) of `KEPT`, `IGNORED` and `CARVED`.

        Args:
            size: width and height.

        Raises:
            BrokenPhotographError: the file is gone, or cannot be decoded.
        """
        return _states(plane_of(self.path, self.kind, size), self.carves)


@dataclass(frozen=True)
class GivenMask:
    """The mask of a view, from a caller in Python.

    Attributes:
        read: gives (height, width) bool or uint8, always the same, from any thread: False and 0
            hide.
        carves: whether hidden pixels are to be transparent.
    """

    read: Callable[[], Any]
    carves: bool

    def states(self, size: tuple[int, int]) -> NDArray[np.uint8]:
        """As :meth:`Mask.states`.

        Raises:
            InputError: ``read`` gave something else than such an array.
        """
        given = np.asarray(self.read())
        shape = size[1], size[0]
        if given.dtype not in MASK_DTYPES or given.shape != shape:
            raise InputError(
                f"masks must be bool or uint8 of shape {shape}, got {given.dtype} of {given.shape}"
            )
        return _states(_plane(given != 0), self.carves)


def mask_of(image: Path | None, photograph: Path, *, has_alpha: bool, mode: Mode) -> Mask | None:
    """The mask of a photograph in its own size.

    Args:
        image: of the mask, if there is one; alpha is not looked at then.
        has_alpha: whether pixels of the photograph may be transparent.
    """
    carves = mode == "carve"
    if image is not None:
        return Mask(image, image, "image", carves)
    if has_alpha and uses_alpha(mode):
        return Mask(photograph, photograph, "alpha", carves)
    return None


def uses_alpha(mode: Mode) -> bool:
    """Whether alpha channels are masks."""
    return mode in ("ignore", "carve")


def plane_of(path: Path, kind: Kind, size: tuple[int, int]) -> NDArray[np.uint8]:
    """(height, width) uint8 of a mask: `WHOLE` is kept, 0 hidden.

    An image of a mask may be smaller or larger than its photograph: each pixel takes the nearest.

    Args:
        kind: of the file.
        size: width and height.
    """
    if kind != "image":
        return decode_alpha(path, size=size)
    kept = decode_nonzero(path)
    height, width = kept.shape
    rows, columns = (
        ((np.arange(n) + 0.5) * (of / n)).astype(np.intp)
        for n, of in ((size[1], height), (size[0], width))
    )
    if (width, height) != size:
        kept = kept[rows[:, None], columns]
    return _plane(kept)


def _plane(kept: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.where(kept, np.uint8(WHOLE), np.uint8(0))


def _states(plane: NDArray[np.uint8], carves: bool) -> NDArray[np.uint8]:
    states = np.full(plane.shape, IGNORED, np.uint8)
    states[plane == WHOLE] = KEPT
    if carves:
        states[plane == 0] = CARVED
    return states


def find_masks(source: Source, mode: Mode) -> tuple[list[Path | None], list[str]]:
    """The image of a mask for each photograph of a capture, and a line about them.

    A photograph's mask is the one that its frame names. Where no frame names any, it is
    ``masks/NAME.png`` with NAME the photograph's name with or without its ending.

    Returns:
        One for each of the model's images, None without one; and lines, none where the capture has
        neither masks nor a folder for them. Whether a mask that a frame names is there is left to
        who opens it.
    """
    names = [image.name for image in source.model.images]
    nothing: list[Path | None] = [None] * len(names)
    n_named = sum(path is not None for path in source.masks)
    folder = next((source.folder / f for f in FOLDERS if (source.folder / f).is_dir()), None)
    places = [] if folder is None else [f"{folder.name}/"]
    if n_named:
        places = [f"mask_path of {n_named} frames"]
    if mode == "off":
        return nothing, [found_line(places, _NONE_USED)] if places else []
    if n_named:
        found = list(source.masks)
    elif folder is None:
        return nothing, []
    else:
        found = [_in_folder(folder, name) for name in names]
    n = sum(path is not None for path in found)
    if not n:
        return nothing, [found_line(places, _NONE_NAMED)]
    return found, [f"{places[0]}: {_told(n, len(names), 'masks', 'black', mode)}"]


def alpha_line(n: int, n_images: int, mode: Mode) -> str:
    """About photographs whose alpha channels are masks."""
    return _told(n, n_images, "alpha channels", "transparent", mode)


def unused_alpha_line(n: int, background: BackgroundKind) -> str:
    """About photographs whose alpha channels are no masks."""
    return (
        f"alpha channels found in {n} photographs, not used: what is transparent is trained on as "
        f"{color_of_transparent(background)} (--mask carve or ignore uses them)"
    )


def color_of_transparent(background: BackgroundKind) -> str:
    """What transparent pixels are where alpha channels are no masks."""
    return "white" if background == "white" else "black"


def _in_folder(folder: Path, name: str) -> Path | None:
    whole = PurePosixPath(name)
    if not whole.name:
        return None
    others = (whole.with_name(f"{whole.name}.png"), whole.with_suffix(".png"))
    return next((folder / other for other in others if os.path.isfile(folder / other)), None)


def _told(n: int, n_images: int, what: str, hidden: str, mode: Mode) -> str:
    carves = mode == "carve"
    how = "are trained to be transparent, and left out of" if carves else "are left out of loss and"
    of = f"{what} of {n} of {n_images} photographs"
    return f"{of}: {hidden} pixels {how} scores (--mask {'carve' if carves else 'ignore'})"
