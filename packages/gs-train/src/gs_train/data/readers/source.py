# SPDX-License-Identifier: Apache-2.0
"""What every reader of a capture returns, and what the chooser asks of a reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gs_train.data.colmap_records import FloatArray, Model
from gs_train.data.frame import Frame

PointsOf = Callable[[Frame], tuple[FloatArray, NDArray[np.uint8]]]
"""Gives (P, 3) float64 positions in the capture's frame and (P, 3) uint8 RGB. The argument is the
frame that the cameras suggest: a reader without points makes some up there."""


@dataclass(frozen=True)
class NamedDepth:
    """The depth map that a frame of a capture's own file names.

    Attributes:
        path: of the map.
        key: that names it.
        unit: length of a value of 1, in units of the capture; None: the file gives none.
    """

    path: Path
    key: str
    unit: float | None


@dataclass(frozen=True)
class Source:
    """Cameras, poses, photographs and points of a capture, before any photograph is opened.

    Attributes:
        folder: the capture's folder.
        model: cameras, and images sorted by name; ``model.folder`` is the place for messages.
        image_folder: holds all photographs.
        photographs: the file of each of the model's images.
        points: gives the points to start from.
        held_out: names of the images that the capture itself holds out; None: the capture does not
            say.
        notes: lines about the capture, for its user.
        masks: the mask of each of the model's images that the capture's own files name, or None;
            empty: they name none.
        depths: likewise the depth maps.
    """

    folder: Path
    model: Model
    image_folder: Path
    photographs: tuple[Path, ...]
    points: PointsOf
    held_out: frozenset[str] | None = None
    notes: tuple[str, ...] = ()
    masks: tuple[Path | None, ...] = ()
    depths: tuple[NamedDepth | None, ...] = ()


class Reader(Protocol):
    """Reads one kind of capture."""

    def finds(self, path: Path) -> bool:
        """Whether a capture of this kind is at ``path``; no file is opened.

        Raises:
            OSError: a folder may not be read.
        """

    def read(self, path: Path) -> Source:
        """The capture at ``path``, where :meth:`finds` said yes.

        Raises:
            InputError: a file of the capture cannot be read or holds what no capture has.
            OSError: a folder may not be read.
        """
