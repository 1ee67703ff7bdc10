# SPDX-License-Identifier: Apache-2.0
"""Lists of different lengths, one after the other in one array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gs_order.arrays import Array


@dataclass(frozen=True)
class Ragged:
    """``values[offsets[i] : offsets[i + 1]]`` is list i.

    Attributes:
        values: numpy array or torch tensor, on any device.
        offsets: (B + 1,) int64 numpy; always on the host, so that slicing never waits.
    """

    values: Array
    offsets: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Array:
        return self.values[int(self.offsets[i]) : int(self.offsets[i + 1])]

    @property
    def counts(self) -> np.ndarray[Any, Any]:
        """(B,) int64 lengths."""
        return np.diff(self.offsets)


def offsets_of(counts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Where lists of these lengths start, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
