# SPDX-License-Identifier: Apache-2.0
"""The attributes that share a row of appearance."""

from __future__ import annotations

import numpy as np
from torch import Tensor


def columns(rows: Tensor) -> dict[str, Tensor]:
    """Views of ``sh0`` (R, 1, 3) and ``shN`` (R, K, 3) in rows of 3 + 3K floats, (R, 3 + 3K)."""
    n, width = rows.shape
    return {"sh0": rows[:, :3].view(n, 1, 3), "shN": rows[:, 3:].view(n, width // 3 - 1, 3)}


def host_columns(rows: np.ndarray) -> list[np.ndarray]:
    """The same two of rows on the host, as a worker takes them: numpy's views cost a fraction of
    torch's."""
    n, width = rows.shape
    return [rows[:, np.newaxis, :3], rows[:, 3:].reshape(n, width // 3 - 1, 3)]
