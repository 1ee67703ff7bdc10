# SPDX-License-Identifier: Apache-2.0
"""Quantiles of more numbers than memory should hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_DROPPED_BITS = 12
"""Of a float32's 23 bits of mantissa: eleven stay, so that a bin is 1/2048 of its values wide."""

_N_BINS = (1 << 31) >> _DROPPED_BITS
_MOST_PENDING = 1 << 20


class Histogram:
    """Counts numbers that are not negative, in bins that grow with them.

    Memory: 4 MiB, and up to 8 MiB of numbers that are not counted yet.
    """

    def __init__(self) -> None:
        self._counts = np.zeros(_N_BINS, np.int64)
        self._pending: list[NDArray[np.uint32]] = []
        self._n_pending = 0

    def add(self, values: NDArray[np.floating]) -> None:
        """Count (N,) finite numbers of at least 0."""
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        self._pending.append(bits >> np.uint32(_DROPPED_BITS))
        self._n_pending += len(bits)
        if self._n_pending > _MOST_PENDING:
            self._count()

    def quantile(self, share: float) -> float | None:
        """The number that ``share`` of all are no larger than, to 1 part in 2000; None without
        any."""
        self._count()
        upto = np.cumsum(self._counts)
        if not upto[-1]:
            return None
        place = int(np.searchsorted(upto, max(1, np.ceil(share * upto[-1]))))
        edges = np.array([place, place + 1], dtype=np.uint32) << _DROPPED_BITS
        low, high = edges.view(np.float32)
        return float(low if place == 0 else (np.float64(low) + high) / 2)

    def _count(self) -> None:
        for bits in self._pending:
            np.add.at(self._counts, bits, 1)
        self._pending, self._n_pending = [], 0
