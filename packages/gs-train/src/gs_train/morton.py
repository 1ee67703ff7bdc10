# SPDX-License-Identifier: Apache-2.0
"""The order of rows along a Morton (Z-order) curve, so that neighbours in space share memory."""

from __future__ import annotations

import torch
from torch import Tensor

_BITS = 21
# Each step halves the runs of bits: (shift, mask of where the bits are afterwards).
_SPREAD = (
    (32, 0x001F00000000FFFF),
    (16, 0x001F0000FF0000FF),
    (8, 0x100F00F00F00F00F),
    (4, 0x10C30C30C30C30C3),
    (2, 0x1249249249249249),
)


@torch.no_grad()
def morton_order(means: Tensor) -> Tensor:
    """The permutation that sorts points along a Morton curve through their bounding cube.

    Equal cells keep their order. Points that are not finite do not widen the cube; such a
    coordinate counts as the cube's lowest.

    Args:
        means: (N, 3) floating point, any device.

    Returns:
        (N,) int64 on the same device: ``means[order]`` is sorted. The same on every device.

    Raises:
        ValueError: ``means`` is not (N, 3).

    Cost: 24 bytes of workspace a row and a 64-bit sort. Does not synchronise.
    """
    if means.ndim != 2 or means.shape[1] != 3:
        raise ValueError(f"means must be (N, 3), got {tuple(means.shape)}")
    return torch.sort(morton_codes(means), stable=True).indices


@torch.no_grad()
def morton_codes(means: Tensor) -> Tensor:
    """63-bit Morton codes: bit ``3 i + a`` is bit ``i`` of the cell along axis ``a``.

    The bounding cube of the finite coordinates has 2^21 cells along each axis.

    Args:
        means: (N, 3) floating point, any device.

    Returns:
        (N,) int64 on the same device, at least 0.
    """
    codes = torch.zeros(len(means), dtype=torch.int64, device=means.device)
    if len(means) == 0:
        return codes
    finite = torch.isfinite(means)
    low = means.where(finite, torch.inf).amin(0).double()
    high = means.where(finite, -torch.inf).amax(0).double()
    # An axis without finite values gives inf - inf or -inf; it must not hide the other axes.
    extent = (high - low).nan_to_num(0.0, 0.0, 0.0).amax()
    scale = torch.where(extent > 0, 2.0**_BITS / extent, torch.zeros_like(extent))
    for axis in range(3):
        cell = (means[:, axis].double() - low[axis]) * scale
        cell = cell.where(finite[:, axis], 0.0).clamp_(0, 2**_BITS - 1).long()
        for shift, mask in _SPREAD:
            cell = (cell | (cell << shift)) & mask
        codes |= cell << axis
    return codes
