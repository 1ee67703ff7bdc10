# SPDX-License-Identifier: Apache-2.0
"""Rows whose columns repeat themselves, so that a store has records of several codecs and sizes."""

from typing import Any

import numpy as np

Rows = dict[str, np.ndarray[Any, Any]]


def repeated(values: np.ndarray[Any, Any], seed: int) -> np.ndarray[Any, Any]:
    """Values (rows, columns) of which few columns stay as they are.

    The others are zeros, have one value, equal the column before or have three values; which, a
    seed says. With every fourth seed all rows are equal, or zero.
    """
    if seed % 4 == 0:
        row = np.zeros_like(values[:1]) if seed % 8 == 0 else values[:1]
        return np.broadcast_to(row, values.shape).copy()
    rows = values.copy()
    for k in range(1, rows.shape[1]):
        kind = (k + seed) % 7
        if kind == 0:
            rows[:, k] = 0.0
        elif kind in (1, 2):
            rows[:, k] = rows[:, k - 1]
        elif kind in (3, 4):
            rows[:, k] = seed
        elif kind == 5:
            rows[:, k] = np.resize(rows[:3, k], len(rows))
    return rows
