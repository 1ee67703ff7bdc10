# SPDX-License-Identifier: Apache-2.0
"""The views of a call: matrices in gsplat's conventions, image sizes and rectangles."""

from __future__ import annotations

from typing import Any

import numpy as np

from gs_cull import _core
from gs_cull.arrays import Array, on_host


class Cameras:
    """Checked views.

    Attributes:
        viewmats: (B, 4, 4) float32, contiguous.
        Ks: (B, 3, 3) float32, contiguous.
        sizes: (B, 6) float32 on the host: width, height, x0, y0, x1, y1 of the pixels that count.
        on_device: as the device functions take the views, and where the matrices were then; None
            before they did. See :func:`gs_cull.device.mark`.
    """

    __slots__ = ("Ks", "_flat", "on_device", "sizes", "viewmats")

    def __init__(self, viewmats: Array, Ks: Array, sizes: np.ndarray) -> None:
        self.viewmats = viewmats
        self.Ks = Ks
        self.sizes = sizes
        self.on_device: tuple[_core.ViewsAt, int, int, int] | None = None
        self._flat: tuple[Array, Array] | None = None

    def __len__(self) -> int:
        return self.sizes.shape[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return Cameras, (self.viewmats, self.Ks, self.sizes)

    @property
    def flat(self) -> tuple[Array, Array]:
        """viewmats (16 B,) and Ks (9 B,) in the same memory."""
        if self._flat is None:
            self._flat = self.viewmats.reshape(-1), self.Ks.reshape(-1)
        return self._flat

    def with_rects(self, rects: Any) -> Cameras:
        """The same cameras, of which only the pixels of rectangles count.

        Raises:
            TypeError, ValueError: as :func:`check_cameras`.
        """
        sizes = self.sizes.copy()
        sizes[:, 2:] = _rectangles(rects, sizes)
        return Cameras(self.viewmats, self.Ks, sizes)


def check_cameras(viewmats: Array, Ks: Array, width: Any, height: Any, rects: Any) -> Cameras:
    """Check shapes and sizes; matrices of other floating types become float32.

    Raises:
        TypeError: matrices that are not floating point, sizes that are not whole numbers.
        ValueError: shapes that disagree, sizes below 1, rectangles outside their image.
    """
    for name, matrix, side in (("viewmats", viewmats, 4), ("Ks", Ks, 3)):
        if matrix.ndim != 3 or matrix.shape[1:] != (side, side):
            raise ValueError(
                f"{name} must have shape (B, {side}, {side}), got {tuple(matrix.shape)}"
            )
    n, n_ks = viewmats.shape[0], Ks.shape[0]
    if n_ks != n:
        raise ValueError(f"Ks must have one matrix per view, got {n_ks} for {n} views")
    width, height = _whole_numbers("width", width, n), _whole_numbers("height", height, n)
    sizes = np.empty((n, 6), np.float32)
    if rects is None and isinstance(width, int) and isinstance(height, int):
        sizes[:] = (width, height, 0, 0, width, height)
    else:
        sizes[:, 0], sizes[:, 1] = width, height
        sizes[:, 2:4], sizes[:, 4:] = 0, sizes[:, :2]
        if rects is not None:
            sizes[:, 2:] = _rectangles(rects, sizes)
    return Cameras(_float32("viewmats", viewmats), _float32("Ks", Ks), sizes)


def _float32(name: str, matrix: Array) -> Array:
    if not isinstance(matrix, np.ndarray):
        import torch

        if matrix.dtype is torch.float32 and matrix.is_contiguous():
            return matrix
        if not matrix.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {matrix.dtype}")
        return matrix.detach().to(torch.float32).contiguous()
    if matrix.dtype.kind != "f":
        raise TypeError(f"{name} must be floating point, got {matrix.dtype}")
    return np.ascontiguousarray(matrix, np.float32)


def _whole_numbers(name: str, values: Any, n: int) -> np.ndarray | int:
    if type(values) is int and 1 <= values <= 2**24:
        return values
    array = on_host(values, name)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be a whole number or (B,) of them, got {array.dtype}")
    if array.ndim > 1 or (array.ndim == 1 and len(array) != n):
        raise ValueError(f"{name} must be one number or ({n},), got shape {array.shape}")
    # float32 holds every whole number up to 2^24.
    if array.size and not (array.min() >= 1 and array.max() <= 2**24):
        raise ValueError(f"{name} must be from 1 to 2^24, got {array.min()} to {array.max()}")
    return array


def _rectangles(rects: Any, sizes: np.ndarray) -> np.ndarray:
    array = on_host(rects, "rects")
    if array.dtype.kind not in "iu":
        raise TypeError(f"rects must be whole numbers, got {array.dtype}")
    if array.shape != (len(sizes), 4):
        raise ValueError(f"rects must have shape ({len(sizes)}, 4), got {array.shape}")
    x0, y0, x1, y1 = array.T
    inside = (x0 >= 0) & (x0 < x1) & (x1 <= sizes[:, 0])
    inside &= (y0 >= 0) & (y0 < y1) & (y1 <= sizes[:, 1])
    if not inside.all():
        view = int(np.flatnonzero(~inside)[0])
        size = tuple(int(side) for side in sizes[view, :2])
        raise ValueError(
            f"rects must be x0 < x1, y0 < y1 within the image, got {array[view].tolist()} for the "
            f"{size[0]} x {size[1]} pixels of view {view}"
        )
    return array
