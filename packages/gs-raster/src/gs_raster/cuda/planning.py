# SPDX-License-Identifier: Apache-2.0
"""Device memory of one view, for who plans ahead."""

from __future__ import annotations

import torch

from gs_raster import _core
from gs_raster.cuda.drawing import parts_of
from gs_raster.cuda.place import require_cuda
from gs_raster.cuda.sorting import corners, tiles_of
from gs_raster.cuda.splats import WORDS
from gs_raster.types import Rect


def workspace_bytes(
    n_rows: int,
    n_instances: int,
    width: int,
    height: int,
    *,
    depth: bool = False,
    absgrad: bool = False,
    radii: bool = True,
    device: torch.device | str | int = "cuda",
) -> int:
    """Bytes that the stages of a view take at most, forward and backward, besides rows and their
    gradients.

    The most of the three moments: while the splats are ordered and listed, while pixels are
    blended, and while the gradient goes back. Torch's allocator may round each tensor up.

    Args:
        n_rows: rows projected.
        n_instances: pairs of a splat and a tile that the splat touches.
        width, height: pixels of the rectangle.
        depth, absgrad: what is asked of the blending and its gradient.
        radii: whether extents are given.
        device: sorts need workspaces that depend on the device.

    Raises:
        CudaError: this build has no CUDA, or there is no such device.
    """
    number = _number_of(device)
    rect = Rect(0, 0, width, height)
    splats = n_rows * (4 * WORDS + (8 if radii else 0) + 4)  # and their order
    counted = n_rows * 8
    ordering = _core.order_workspace_bytes(n_rows, number)
    counting = counted + n_rows * 4 + _core.count_workspace_bytes(n_rows, number)
    lists = counted + 8 * n_instances + 4 * (tiles_of(rect) + 1)
    listing = lists + n_rows * 4
    listing += _core.list_workspace_bytes(n_instances, corners(rect), number)
    pixels = width * height * 4 * (6 + (1 if depth else 0))
    of_pixels = width * height * 4 * (4 + (1 if depth else 0))
    back = of_pixels + n_instances * 4 * _core.slot_width(depth, absgrad) + n_rows * 4 * WORDS
    return splats + max(ordering, counting, listing, lists + pixels + back)


def drawing_bytes(
    n_rows: int,
    room: int,
    width: int,
    height: int,
    *,
    depth: bool = False,
    absgrad: bool = False,
    radii: bool = True,
    holds_gradient: bool = True,
    device: torch.device | str | int = "cuda",
) -> int:
    """Bytes of a :class:`gs_raster.Workspace` in which one view has been drawn, image and gradients
    of instances included.

    Args:
        n_rows: rows drawn.
        room, depth, absgrad, radii: as of :func:`gs_raster.draw`.
        width, height: pixels of the rectangle.
        holds_gradient: as of the workspace.
        device: sorts need workspaces that depend on the device.

    Raises:
        CudaError: this build has no CUDA, or there is no such device.
    """
    number, rect = _number_of(device), Rect(0, 0, width, height)
    tiles_of(rect)  # raises where there are too many
    parts = parts_of(n_rows, room, corners(rect), depth, absgrad, radii, holds_gradient, number)
    return parts.n_bytes


def _number_of(device: torch.device | str | int) -> int:
    """Of a CUDA device."""
    require_cuda()
    where = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return torch.cuda.current_device() if where.index is None else where.index
