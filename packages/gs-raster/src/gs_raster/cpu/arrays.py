# SPDX-License-Identifier: Apache-2.0
"""Arrays as the kernels want them, or one line about what is wrong."""

from __future__ import annotations

import math

import numpy as np

from gs_raster.cpu.types import Rows, SplatGradients, Splats
from gs_raster.types import Rect

_REALS = (np.dtype(np.float32), np.dtype(np.float64))
_LINE = 64


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


def checked_rows(rows: Rows, sh_degree: int) -> Rows:
    """Rows of one dtype, with the harmonics of a degree."""
    n_rows, dtype = _length_and_dtype("means", rows.means)
    n_bases = rows.shN.shape[1] if np.ndim(rows.shN) == 3 else 0
    shapes = (
        (n_rows, 3),
        (n_rows, 3),
        (n_rows, 4),
        (n_rows,),
        (n_rows, 1, 3),
        (n_rows, n_bases, 3),
    )
    arrays = (checked(*each, dtype) for each in zip(Rows._fields, rows, shapes))
    found = Rows(*arrays)
    if not 0 <= sh_degree <= 3 or (sh_degree + 1) ** 2 - 1 > n_bases:
        raise ValueError(
            f"sh_degree must be 0 to 3 and need at most the {n_bases} bases of shN, got {sh_degree}"
        )
    return found


def checked_splats(splats: Splats) -> Splats:
    """Splats of one dtype."""
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


def check_rect(rect: Rect) -> None:
    if not (0 <= rect.x0 <= rect.x1 and 0 <= rect.y0 <= rect.y1):
        raise ValueError(f"rect must have 0 <= x0 <= x1 and 0 <= y0 <= y1, got {rect}")


def _length_and_dtype(name: str, values: np.ndarray) -> tuple[int, np.dtype]:
    array = np.asarray(values)
    if array.dtype not in _REALS:
        raise TypeError(f"{name} must be float32 or float64, got {array.dtype}")
    if array.ndim == 0:
        raise ValueError(f"{name} must have a row per Gaussian, got shape ()")
    return len(array), array.dtype
