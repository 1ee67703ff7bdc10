# SPDX-License-Identifier: Apache-2.0
"""The arrays that bound blocks of rows, and how they are made."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gs_cull.arrays import Array, Rows, fill_at, is_torch, native, on_host, zeros
from gs_cull.options import native_options


class Bounds(NamedTuple):
    """Bounds of blocks; the attributes of :class:`gs_cull.Blocks` of the same names."""

    lower: Array
    upper: Array
    scale: Array
    slack: Array
    not_finite: Array


class Layout(NamedTuple):
    """Where the rows of blocks are, and their bounds; what the native parts take.

    Attributes:
        n_rows: ids lie in [0, n_rows).
        block_size: rows per block.
        order: (n_rows,) int32 row at each position, or None.
        block_in_slot: (S,) int32 the block in each slot or -1, or None when all are there.
        slot_of_block: (blocks,) int32 the inverse, or None with it.
        bounds: of all blocks.
    """

    n_rows: int
    block_size: int
    order: Array | None
    block_in_slot: Array | None
    slot_of_block: Array | None
    bounds: Bounds


def empty_bounds(like: Array, n_blocks: int) -> Bounds:
    """Room for the bounds of so many blocks, of the kind and on the device of ``like``."""
    return Bounds(
        zeros(like, (n_blocks, 3), "float32"),
        zeros(like, (n_blocks, 3), "float32"),
        zeros(like, (n_blocks,), "float32"),
        zeros(like, (n_blocks, 2), "float32"),
        zeros(like, (n_blocks,), "int32"),
    )


def fit_bounds(
    layout: Layout,
    rows: Rows,
    which: Array,
    stored: Array,
    end: int,
    *,
    activated: bool,
    slack: tuple[float, float],
) -> None:
    """Bound blocks ``which`` of rows that lie at places ``stored``, counted in blocks.

    Args:
        layout: its bounds are written; its slots are not looked at.
        rows: means, scales and quats.
        which, stored: (n,) int32.
        end: id after the last row in the arrays.
        activated: scales are no logarithms.
        slack: what the bounds of these blocks get.
    """
    bounds = layout.bounds
    if is_torch(bounds.scale):
        import torch

        which, stored = (
            torch.as_tensor(a, dtype=torch.int32, device=bounds.scale.device)
            for a in (which, stored)
        )
    options = native_options(
        near=1.0,
        far=2.0,
        eps2d=0.0,
        radius_clip=0.0,
        camera_model="pinhole",
        activated=activated,
        antialiased=False,
        inflate=None,
    )
    native(bounds.scale).fit_blocks(rows, layout, which, stored, end, options)
    for column, value in enumerate(slack):
        fill_at(bounds.slack[:, column], which, value)


def all_blocks(bounds: Bounds) -> Array:
    """(blocks,) int32 ids, where the bounds are."""
    n = len(bounds.scale)
    if is_torch(bounds.scale):
        import torch

        return torch.arange(n, dtype=torch.int32, device=bounds.scale.device)
    return np.arange(n, dtype=np.int32)


def block_ids(bounds: Bounds, blocks: Any) -> Array:
    """Checked (n,) int32 ids of blocks, where the bounds are.

    Ids on a CUDA device are read back to check them, which synchronises.

    Raises:
        TypeError: they are not whole numbers in one dimension.
        IndexError: there is no such block.
    """
    ids = on_host(blocks, "blocks")
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise TypeError(f"blocks must be (n,) whole numbers, got {ids.dtype} {ids.shape}")
    if len(ids) and not (ids.min() >= 0 and ids.max() < len(bounds.scale)):
        raise IndexError(
            f"blocks must be from 0 to {len(bounds.scale) - 1}, got {ids.min()} to {ids.max()}"
        )
    if is_torch(bounds.scale):
        import torch

        return torch.as_tensor(blocks, dtype=torch.int32, device=bounds.scale.device)
    return ids.astype(np.int32)
