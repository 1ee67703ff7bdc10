# SPDX-License-Identifier: Apache-2.0
"""The order of rows along a Morton (Z-order) curve, so that neighbours in space share memory."""

from __future__ import annotations

from typing import NamedTuple

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


PIECE = 1 << 22
"""Rows that are sorted at once."""

SORT_BYTES = 96
"""Workspace of a row that is being sorted."""


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

    Cost: beside the result 2 bytes a row, and ``SORT_BYTES`` for each of ``PIECE`` rows that are
        sorted at once. Synchronises where there are more rows.
    """
    if means.ndim != 2 or means.shape[1] != 3:
        raise ValueError(f"means must be (N, 3), got {tuple(means.shape)}")
    n, cube = len(means), _Cube.around(means)
    if n <= PIECE:
        return torch.sort(cube.codes(means), stable=True).indices
    # Stretches of the curve with about as many rows each, cut at every so many rows' codes.
    n_stretches = 2 * -(-n // PIECE)
    sample = cube.codes(means[:: -(-8 * n // PIECE)]).sort().values
    cuts = sample[torch.arange(1, n_stretches, device=means.device) * len(sample) // n_stretches]
    stretch = torch.empty(n, dtype=torch.int16, device=means.device)
    for start in range(0, n, PIECE):
        part = slice(start, start + PIECE)
        stretch[part] = torch.bucketize(cube.codes(means[part]), cuts, right=True)
    order, done = torch.empty(n, dtype=torch.int64, device=means.device), 0
    for k in range(n_stretches):
        rows = torch.nonzero(stretch == k).squeeze(1)
        codes = torch.cat([cube.codes(means[part]) for part in rows.split(PIECE)])
        if k:
            # Where one far point makes the cube vast, most rows are in the cell of a cut.
            is_first = codes == cuts[k - 1]
            first, rows, codes = rows[is_first], rows[~is_first], codes[~is_first]
            order[done : done + len(first)] = first
            done += len(first)
        order[done : done + len(rows)] = rows[torch.sort(codes, stable=True).indices]
        done += len(rows)
    return order


@torch.no_grad()
def morton_codes(means: Tensor) -> Tensor:
    """63-bit Morton codes: bit ``3 i + a`` is bit ``i`` of the cell along axis ``a``.

    The bounding cube of the finite coordinates has 2^21 cells along each axis.

    Args:
        means: (N, 3) floating point, any device.

    Returns:
        (N,) int64 on the same device, at least 0.
    """
    return _Cube.around(means).codes(means)


class _Cube(NamedTuple):
    """The bounding cube of points: its lowest corner, and cells a unit of length; float64."""

    low: Tensor
    scale: Tensor

    @classmethod
    def around(cls, means: Tensor) -> _Cube:
        """Of the finite coordinates."""
        low = means.new_full((3,), torch.inf)
        high = -low
        for start in range(0, len(means), PIECE):
            part = means[start : start + PIECE]
            finite = torch.isfinite(part)
            low = torch.minimum(low, part.where(finite, torch.inf).amin(0))
            high = torch.maximum(high, part.where(finite, -torch.inf).amax(0))
        lowest, highest = low.double(), high.double()
        # An axis without finite values gives inf - inf or -inf; it must not hide the other axes.
        extent = (highest - lowest).nan_to_num(0.0, 0.0, 0.0).amax()
        scale = torch.where(extent > 0, 2.0**_BITS / extent, torch.zeros_like(extent))
        return cls(lowest, scale)

    def codes(self, means: Tensor) -> Tensor:
        """(R,) int64 of (R, 3) of the points."""
        codes = torch.zeros(len(means), dtype=torch.int64, device=means.device)
        for axis in range(3):
            cell = (means[:, axis].double() - self.low[axis]) * self.scale
            cell = cell.where(torch.isfinite(means[:, axis]), 0.0)
            cell = cell.clamp_(0, 2**_BITS - 1).long()
            for shift, mask in _SPREAD:
                cell = (cell | (cell << shift)) & mask
            codes |= cell << axis
        return codes
