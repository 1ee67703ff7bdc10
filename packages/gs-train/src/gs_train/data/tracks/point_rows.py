# SPDX-License-Identifier: Apache-2.0
"""From COLMAP's point ids to rows of the table of points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MOST_SPARSE = 8
"""Ids up to so many times the number of points get a table: COLMAP leaves gaps where it removed
points. Beyond, ids are searched."""


class PointRows:
    """Finds the rows of points.

    Args:
        ids: (P,) int64, of the points in file order.

    Memory: 4 bytes for each id up to the largest one, or 12 bytes a point.
    """

    def __init__(self, ids: NDArray[np.int64]) -> None:
        largest = int(ids.max()) if len(ids) else -1
        self._n = len(ids)
        self._table: NDArray[np.int32] | None = None
        if largest < _MOST_SPARSE * len(ids) + 1024 and (not len(ids) or int(ids.min()) >= 0):
            self._table = np.full(largest + 1, -1, np.int32)
            self._table[ids] = np.arange(len(ids), dtype=np.int32)
        else:
            self._order = np.argsort(ids, kind="stable")
            self._sorted = ids[self._order]

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """(M,) rows; -1 where no point has the id."""
        if self._table is not None:
            is_known = (ids >= 0) & (ids < len(self._table))
            rows: NDArray[np.int64] = np.full(len(ids), -1, np.int64)
            rows[is_known] = self._table[ids[is_known]]
            return rows
        place = np.minimum(np.searchsorted(self._sorted, ids), self._n - 1)
        return np.where(self._sorted[place] == ids, self._order[place], -1)
