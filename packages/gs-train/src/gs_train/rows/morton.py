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

_ORDER_BYTES = 8 + 2 + 1  # of a row: the order, stretches of the curve, one of them

_ASTRAY, _VAST, _MARGIN = 1e-3, 32.0, 4.0
_LEAST_ASTRAY = 502
_SAMPLED = 1 << 18
"""See `central_bounds`: points that are looked at for the ranges without strays."""


def sort_bytes(n_rows: int) -> int:
    """Bytes that `morton_order` takes, its result included."""
    return _ORDER_BYTES * n_rows + SORT_BYTES * min(n_rows, PIECE)


@torch.no_grad()
def morton_order(means: Tensor) -> Tensor:
    """The permutation that sorts points along a Morton curve through a cube around them.

    Equal cells keep their order. A coordinate that is not finite counts as the cube's lowest, one
    outside the cube, see `central_bounds`, as its border.

    Args:
        means: (N, 3) floating point, any device.

    Returns:
        (N,) int64 on the same device: ``means[order]`` is sorted. The same on every device.

    Raises:
        ValueError: ``means`` is not (N, 3).

    Cost: beside the result 2 bytes a row, and ``SORT_BYTES`` for each of ``PIECE`` rows that are
        sorted at once. Synchronises.
    """
    if means.ndim != 2 or means.shape[1] != 3:
        raise ValueError(f"means must be (N, 3), got {tuple(means.shape)}")
    n, cube = len(means), MortonCube.around(means)
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
def central_bounds(means: Tensor) -> tuple[Tensor, Tensor]:
    """The bounds of points, but for those that have gone astray.

    Of the coordinates, but for a thousandth on either side of each axis, the widest range is the
    unit. Where all span more than 32 of it, the bounds lie 4 beyond these ranges at most: one point
    at the origin of a cloud in geodetic coordinates would make the others a single cell. Clouds of
    fewer than 502 points have none astray.

    Args:
        means: (N, 3) floating point, any device; coordinates that are not finite do not count.

    Returns:
        (3,) lowest and highest coordinates there, float64; inf and -inf along an axis without any.

    Cost: one pass over the points, and a sort of a quarter of a million. May synchronise.
    """
    low = means.new_full((3,), torch.inf)
    high = -low
    for start in range(0, len(means), PIECE):
        part = means[start : start + PIECE]
        finite = torch.isfinite(part)
        low = torch.minimum(low, part.where(finite, torch.inf).amin(0))
        high = torch.maximum(high, part.where(finite, -torch.inf).amax(0))
    return bounds_by_sample(low, high, means[:: sample_stride(len(means))], len(means))


def sample_stride(n_rows: int) -> int:
    """Every how many rows, from the first on, one is looked at for the ranges without strays."""
    return max(1, -(-n_rows // _SAMPLED))


def bounds_by_sample(
    low: Tensor, high: Tensor, sample: Tensor, n_rows: int
) -> tuple[Tensor, Tensor]:
    """`central_bounds` of points that are not in memory together.

    Args:
        low, high: (3,) of the finite coordinates of all points.
        sample: (S, 3) every `sample_stride`-th point.
        n_rows: points in all.
    """
    low, high = low.double(), high.double()
    if n_rows < _LEAST_ASTRAY:
        return low, high
    sample = sample.double()
    sample = sample.where(torch.isfinite(sample), torch.nan)
    shares = torch.tensor([_ASTRAY, 1 - _ASTRAY], dtype=torch.float64, device=sample.device)
    first, last = torch.nanquantile(sample, shares, dim=0, interpolation="nearest")
    unit = _widest(first, last)
    is_vast = (unit > 0) & (_widest(low, high) > _VAST * unit)
    reach = torch.where(is_vast, _MARGIN * unit, torch.inf)
    return torch.fmax(low, first - reach), torch.fmin(high, last + reach)


def _widest(low: Tensor, high: Tensor) -> Tensor:
    # An axis without finite values gives inf - inf or -inf; it must not hide the other axes.
    return (high - low).nan_to_num(0.0, 0.0, 0.0).amax()


@torch.no_grad()
def morton_codes(means: Tensor) -> Tensor:
    """63-bit Morton codes: bit ``3 i + a`` is bit ``i`` of the cell along axis ``a``.

    The cube of `central_bounds` has 2^21 cells along each axis; what lies outside counts as in the
    cells of its border.

    Args:
        means: (N, 3) floating point, any device.

    Returns:
        (N,) int64 on the same device, at least 0.
    """
    return MortonCube.around(means).codes(means)


class MortonCube(NamedTuple):
    """A cube around points: its lowest corner (3,), and cells a unit of length (); float64."""

    low: Tensor
    scale: Tensor

    @classmethod
    def around(cls, means: Tensor) -> MortonCube:
        """Of the finite coordinates."""
        return cls.within(*central_bounds(means))

    @classmethod
    def within(cls, low: Tensor, high: Tensor) -> MortonCube:
        """Of bounds, see `central_bounds`."""
        extent = _widest(low, high)
        scale = torch.where(extent > 0, 2.0**_BITS / extent, torch.zeros_like(extent))
        return cls(low, scale)

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
