# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-defs
"""Which splats touch which tile, front to back.

The grid of 16 x 16 tiles is that of the whole view, whatever the rectangle, so that a pixel sees
the same splats in the same order from any rectangle. Splats are sorted once by depth, rows of equal
depth by their keys, and dealt to the tiles in that order: every tile's list is then sorted too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit

from gs_raster.types import Rect, check_instances

TILE = 16


@dataclass(frozen=True)
class TileLists:
    """Pairs of a splat and a tile that it touches, grouped by tile.

    Splats are counted front to back: splat k is row ``order[k]``.

    Attributes:
        n_rows: R, of the splats.
        rect: the rectangle whose tiles these are.
        columns: tiles per row of tiles.
        x0, y0: pixel of the first tile's first corner.
        order: (M,) int64, rows that touch a tile of the rectangle, or show outside of it only.
        offsets: (n_tiles + 1,) int64, where each tile's pairs begin.
        splats: (P,) int32, ascending within a tile.
        slots: (P,) int32, the pair's place when pairs are grouped by splat instead.
        slot_begins: (M + 1,) int64, where each splat's slots begin.
    """

    n_rows: int
    rect: Rect
    columns: int
    x0: int
    y0: int
    order: np.ndarray
    offsets: np.ndarray
    splats: np.ndarray
    slots: np.ndarray
    slot_begins: np.ndarray

    @property
    def n_tiles(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_pairs(self) -> int:
        return len(self.splats)


def list_tiles(
    means2d: np.ndarray,
    radii: np.ndarray,
    depths: np.ndarray,
    rect: Rect,
    keys: np.ndarray | None = None,
) -> TileLists:
    """Deal splats to the tiles that ``rect`` touches.

    Args:
        means2d: (R, 2) pixels.
        radii: (R, 2) int32, half extents in pixels; rows with a 0 touch nothing.
        depths: (R,) sort key, ascending.
        rect: not negative.
        keys: (R,) order of rows of equal depth; None: that of the rows.

    Raises:
        TooManyInstancesError: there are 2^31 pairs or more.
    """
    x0, y0 = rect.x0 // TILE, rect.y0 // TILE
    x1, y1 = -(-rect.x1 // TILE), -(-rect.y1 // TILE)
    shown = np.flatnonzero((radii > 0).all(axis=1))
    if keys is not None:
        shown = shown[np.argsort(keys[shown])]
    order = shown[np.argsort(depths[shown], kind="stable")]
    spans = np.empty((len(order), 4), np.int32)
    slot_begins = np.zeros(len(order) + 1, np.int64)
    _span_tiles(order, means2d, radii, (x0, y0, x1, y1), spans, slot_begins)
    n_pairs = int(slot_begins[-1])
    check_instances(n_pairs)
    offsets = np.zeros((x1 - x0) * (y1 - y0) + 1, np.int64)
    splats = np.empty(n_pairs, np.int32)
    slots = np.empty(n_pairs, np.int32)
    _deal(spans, (x0, y0, x1, y1), offsets, splats, slots)
    corner = x0 * TILE, y0 * TILE
    n_rows = len(depths)
    return TileLists(n_rows, rect, x1 - x0, *corner, order, offsets, splats, slots, slot_begins)


@njit(cache=True, nogil=True, error_model="numpy")
def _held(value, low, high):
    """The value between two bounds, NaN as ``low``: a float out of range has no integer."""
    value = np.float64(value)
    value = value if value > low else np.float64(low)
    return value if value < high else np.float64(high)


@njit(cache=True, nogil=True, error_model="numpy")
def _span_tiles(order, means2d, radii, grid, spans, slot_begins):
    """Tile ranges x0, y0, x1, y1 of each splat, and the running count of the tiles in them."""
    real = means2d.dtype.type
    x0, y0, x1, y1 = grid
    side = real(TILE)
    for k in range(len(order)):
        i = order[k]
        u, v = means2d[i, 0] / side, means2d[i, 1] / side
        reach_x, reach_y = real(radii[i, 0]) / side, real(radii[i, 1]) / side
        spans[k, 0] = math.floor(_held(u - reach_x, x0, x1))
        spans[k, 1] = math.floor(_held(v - reach_y, y0, y1))
        spans[k, 2] = math.ceil(_held(u + reach_x, x0, x1))
        spans[k, 3] = math.ceil(_held(v + reach_y, y0, y1))
        width = np.int64(spans[k, 2]) - np.int64(spans[k, 0])
        height = np.int64(spans[k, 3]) - np.int64(spans[k, 1])
        slot_begins[k + 1] = slot_begins[k] + width * height


@njit(cache=True, nogil=True, error_model="numpy")
def _deal(spans, grid, offsets, splats, slots):
    x0, y0, x1, _ = grid
    columns = x1 - x0
    for k in range(len(spans)):
        for y in range(spans[k, 1] - y0, spans[k, 3] - y0):
            for x in range(spans[k, 0] - x0, spans[k, 2] - x0):
                offsets[y * columns + x + 1] += 1
    for tile in range(1, len(offsets)):
        offsets[tile] += offsets[tile - 1]
    cursors = offsets[:-1].copy()
    slot = 0
    for k in range(len(spans)):
        for y in range(spans[k, 1] - y0, spans[k, 3] - y0):
            for x in range(spans[k, 0] - x0, spans[k, 2] - x0):
                tile = y * columns + x
                splats[cursors[tile]] = k
                slots[cursors[tile]] = slot
                cursors[tile] += 1
                slot += 1
