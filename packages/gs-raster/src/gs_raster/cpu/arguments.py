# SPDX-License-Identifier: Apache-2.0
"""Arguments as the kernels want them, or one line about what is wrong."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from gs_raster.cpu.types import Camera, Rows, SplatGradients, Splats
from gs_raster.numbers import whole
from gs_raster.types import Rect

_REALS = (np.dtype(np.float32), np.dtype(np.float64))
_LINE = 64
_MOST_PIXELS = 2**31 - 1
_T = TypeVar("_T")


def zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros from the beginning of a cache line, where torch's tensors begin too.

    numpy's own arrays begin at any 16 bytes, so that a library which treats the elements before the
    first line apart would not compute the same bits in every run.
    """
    n_bytes = math.prod(shape) * dtype.itemsize
    room = np.zeros(n_bytes + _LINE, np.uint8)
    begin = -room.ctypes.data % _LINE
    return room[begin : begin + n_bytes].view(dtype).reshape(shape)


def checked(name: str, values: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array, or a copy of it, of one numba type: C-contiguous, aligned, writable.

    Raises:
        TypeError: another dtype.
        ValueError: another shape.
    """
    array = np.asarray(values)
    if array.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, got {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    return np.require(array, requirements=["C", "A", "W"])


def made_of(kind: type[_T], name: str, value: _T) -> _T:
    """The value itself.

    Raises:
        TypeError: the value is of another class.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {kind.__name__}, got {type(value).__name__}")
    return value


def checked_threads(n_threads: int | None) -> int | None:
    """None, or a number of threads."""
    if n_threads is None:
        return None
    n_threads = whole("n_threads", n_threads)
    if n_threads < 1:
        raise ValueError(f"n_threads must be at least 1, got {n_threads}")
    return n_threads


def checked_camera(camera: Camera) -> Camera:
    """A camera whose matrix the kernels can read."""
    world = made_of(Camera, "camera", camera).world
    return camera._replace(world=checked("world", world, (4, 4), np.dtype(np.float64)))


def checked_degree(sh_degree: int, n_bases: int) -> int:
    """A degree of the harmonics that shN holds."""
    degree = whole("sh_degree", sh_degree)
    if not 0 <= degree <= 3 or (degree + 1) ** 2 - 1 > n_bases:
        raise ValueError(
            f"sh_degree must be 0 to 3 and need at most the {n_bases} bases of shN, got {degree}"
        )
    return degree


def checked_rows(rows: Rows) -> Rows:
    """Rows of one dtype."""
    made_of(Rows, "rows", rows)
    n_rows, dtype = _length_and_dtype("means", rows.means)
    n_bases = np.shape(rows.shN)[1] if np.ndim(rows.shN) == 3 else 0
    shapes = (
        (n_rows, 3),
        (n_rows, 3),
        (n_rows, 4),
        (n_rows,),
        (n_rows, 1, 3),
        (n_rows, n_bases, 3),
    )
    arrays = (checked(*each, dtype) for each in zip(Rows._fields, rows, shapes))
    return Rows(*arrays)


def checked_splats(splats: Splats) -> Splats:
    """Splats of one dtype."""
    made_of(Splats, "splats", splats)
    n_rows, dtype = _length_and_dtype("means2d", splats.means2d)
    return Splats(
        means2d=checked("means2d", splats.means2d, (n_rows, 2), dtype),
        conics=checked("conics", splats.conics, (n_rows, 3), dtype),
        depths=checked("depths", splats.depths, (n_rows,), dtype),
        radii=checked("radii", splats.radii, (n_rows, 2), np.dtype(np.int32)),
        opacities=checked("opacities", splats.opacities, (n_rows,), dtype),
        colors=checked("colors", splats.colors, (n_rows, 3), dtype),
    )


def filled(gradients: SplatGradients, n_rows: int, dtype: np.dtype) -> SplatGradients:
    """Gradients of R splats, with zeros for None; None stays where no stage reads zeros."""
    made_of(SplatGradients, "gradients", gradients)

    def array(name: str, *shape: int) -> np.ndarray:
        values = getattr(gradients, name)
        if values is None:
            return zeros(shape, dtype)
        return checked(name, values, shape, dtype)

    return SplatGradients(
        means2d=array("means2d", n_rows, 2),
        conics=array("conics", n_rows, 3),
        depths=array("depths", n_rows),
        opacities=array("opacities", n_rows),
        colors=None if gradients.colors is None else array("colors", n_rows, 3),
    )


def checked_rect(rect: Rect) -> Rect:
    """A rectangle of whole numbers, none negative, whose tiles 32 bits number."""
    made_of(Rect, "rect", rect)
    x0, y0, x1, y1 = (
        whole(f"rect.{name}", getattr(rect, name)) for name in ("x0", "y0", "x1", "y1")
    )
    if not (0 <= x0 <= x1 <= _MOST_PIXELS and 0 <= y0 <= y1 <= _MOST_PIXELS):
        raise ValueError(
            f"rect must have 0 <= x0 <= x1 < 2^31 and 0 <= y0 <= y1 < 2^31, got {rect}"
        )
    return Rect(x0, y0, x1, y1)


def _length_and_dtype(name: str, values: np.ndarray) -> tuple[int, np.dtype]:
    array = np.asarray(values)
    if array.dtype not in _REALS:
        raise TypeError(f"{name} must be float32 or float64, got {array.dtype}")
    if array.ndim == 0:
        raise ValueError(f"{name} must have a row per Gaussian, got shape ()")
    return len(array), array.dtype
