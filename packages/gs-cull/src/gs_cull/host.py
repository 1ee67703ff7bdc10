# SPDX-License-Identifier: Apache-2.0
"""The native functions on host threads, numpy arrays or CPU tensors in.

Each function mirrors one of :mod:`gs_cull.device`. Results are of the kind of the first input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gs_cull import _core
from gs_cull.arrays import Array, Geometry, Rows, is_torch
from gs_cull.cameras import Cameras


def _like(reference: Any, array: np.ndarray) -> Array:
    """A numpy result as a torch tensor, sharing memory, where the reference is one."""
    if not is_torch(reference):
        return array
    import torch

    return torch.from_numpy(array.view(np.int32) if array.dtype == np.uint32 else array)


def _words(words: Any) -> np.ndarray:
    """Mask words as uint32 in numpy."""
    return words.numpy().view(np.uint32) if is_torch(words) else words


def cull(
    geometry: Geometry,
    cameras: Cameras,
    options: _core.Options,
    blocks: tuple[Any, ...] | None,
) -> tuple[Array, Array, Array, int]:
    """ids, mask, counts and the rows looked at that are not finite."""
    if blocks is not None:
        blocks = (*blocks[:-1], _words(blocks[-1]))
    ids, mask, counts, n_not_finite = _core.cull_cpu(
        *geometry, cameras.viewmats, cameras.Ks, cameras.sizes, options, blocks
    )
    means = geometry[0]
    return _like(means, ids), _like(means, mask), _like(means, counts), n_not_finite


def boxes(geometry: Geometry, cameras: Cameras, options: _core.Options, ids: Array) -> Array:
    """(n, 4) pixels x0, y0, x1, y1 that the rows ``ids`` may reach in the one view."""
    out = _core.boxes_cpu(*geometry, cameras.viewmats, cameras.Ks, cameras.sizes, options, ids)
    return _like(ids, out)


def views_of_blocks(
    bounds: tuple[Any, ...], cameras: Cameras, options: _core.Options, *, check: bool = False
) -> Array:
    """(blocks, ceil(B / 32)) words: which views may see each block.

    Faulty cameras always raise here, ``check`` or not.
    """
    words = _core.views_of_blocks_cpu(bounds, cameras.viewmats, cameras.Ks, cameras.sizes, options)
    return _like(bounds[0], words)


def fit_blocks(
    rows: Rows,
    blocking: tuple[Any, ...],
    options: _core.Options,
    bounds: tuple[Any, ...],
) -> None:
    """Write the bounds of the blocks that ``blocking`` names into ``bounds``."""
    _core.fit_blocks_cpu(*rows, blocking, options, bounds)


def morton_order(means: Array, cube: tuple[float, ...]) -> Array:
    """(N,) int32 rows along the curve. 24 bytes a row of workspace."""
    return _like(means, _core.morton_order_cpu(means, cube))


def pair_counts(mask: Array, n_views: int) -> Array:
    """(B, B) int64 rows that both views see."""
    return _like(mask, _core.pair_counts_cpu(_words(mask), n_views))
