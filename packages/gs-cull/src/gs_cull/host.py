# SPDX-License-Identifier: Apache-2.0
"""The native functions on host threads, numpy arrays or CPU tensors in.

Each function mirrors one of :mod:`gs_cull.device`. Results are of the kind of the first input.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gs_cull import _core
from gs_cull.arrays import Array, Geometry, Rows, is_torch
from gs_cull.bounds import Bounds, Layout
from gs_cull.cameras import Cameras


def _like(reference: Any, array: np.ndarray) -> Array:
    """A numpy result as a torch tensor, sharing memory, where the reference is one."""
    if not is_torch(reference):
        return array
    import torch

    return torch.from_numpy(array.view(np.int32) if array.dtype == np.uint32 else array)


def _words(words: Any) -> np.ndarray:
    """Mask words as uint32 in numpy."""
    if not is_torch(words):
        return words
    array: np.ndarray = words.numpy()
    return array.view(np.uint32) if array.dtype == np.int32 else array


def cull(
    geometry: Geometry, cameras: Cameras, options: _core.Options, layout: Layout | None
) -> tuple[Array, Array, Array, int]:
    """ids, mask, counts and the rows that are not finite."""
    views = (cameras.viewmats, cameras.Ks, cameras.sizes)
    blocks = None
    if layout is not None:
        blocks = (*layout[:-1], _core.views_of_blocks_cpu(layout.bounds, *views, options))
    ids, mask, counts, n_not_finite = _core.cull_cpu(*geometry, *views, options, blocks)
    if layout is not None:
        not_finite = np.asarray(layout.bounds.not_finite)
        if layout.slot_of_block is not None:
            not_finite = not_finite[np.asarray(layout.slot_of_block) >= 0]
        n_not_finite = int(not_finite.sum())
    means = geometry[0]
    return _like(means, ids), _like(means, mask), _like(means, counts), n_not_finite


def mark(
    geometry: Geometry,
    cameras: Cameras,
    options: _core.Options,
    ids: Array,
    mask: Array,
    out: Array | None,
) -> Array:
    """(U,) bool, ``out`` if given: which of the rows ``ids`` a view of their mask sees."""
    views = (cameras.viewmats, cameras.Ks, cameras.sizes)
    marks = _core.mark_cpu(*geometry, *views, options, ids, _words(mask), out)
    return _like(ids, marks) if out is None else out


def check_marking(
    n_rows: int, cameras: Cameras, options: _core.Options, ids: Array, mask: Array
) -> None:
    """Raise what :func:`mark` raises for these views, ids and mask."""
    views = (cameras.viewmats, cameras.Ks, cameras.sizes)
    _core.check_marking(n_rows, *views, options, ids, _words(mask))


def boxes(geometry: Geometry, cameras: Cameras, options: _core.Options, ids: Array) -> Array:
    """(n, 4) pixels x0, y0, x1, y1 that the rows ``ids`` may reach in the one view."""
    out = _core.boxes_cpu(*geometry, cameras.viewmats, cameras.Ks, cameras.sizes, options, ids)
    return _like(ids, out)


def views_of_blocks(bounds: Bounds, cameras: Cameras, options: _core.Options) -> Array:
    """(blocks, ceil(B / 32)) words: which views may see each block."""
    words = _core.views_of_blocks_cpu(bounds, cameras.viewmats, cameras.Ks, cameras.sizes, options)
    return _like(bounds.scale, words)


def fit_blocks(
    rows: Rows, layout: Layout, which: Array, stored: Array, end: int, options: _core.Options
) -> None:
    """Write the bounds of blocks ``which`` of rows at ``stored`` into those of ``layout``."""
    blocking = (end, layout.block_size, layout.order, which, stored)
    _core.fit_blocks_cpu(*rows, blocking, options, layout.bounds)


def morton_order(means: Array, cube: tuple[float, float, float, float]) -> Array:
    """(N,) int32 rows along the curve. 24 bytes a row of workspace."""
    return _like(means, _core.morton_order_cpu(means, cube))


def pair_counts(mask: Array, n_views: int) -> Array:
    """(B, B) int64 rows that both views see."""
    return _like(mask, _core.pair_counts_cpu(_words(mask), n_views))
