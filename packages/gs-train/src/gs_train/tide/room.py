# SPDX-License-Identifier: Apache-2.0
"""How many rows of a batch a device has room for, beside slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ROW_BYTES = 4 * (2 * 59 + 2 * 11) + 24
"""Of a row of a batch: values and sums of gradients, the geometry of candidates twice, for a row of
several; keys, places and masks."""


@dataclass(frozen=True)
class BatchRoom:
    """Room for the rows of batches.

    Attributes:
        most_rows: that a batch may see at once; at least 1.
        device_bytes: of the device, as ``--device-memory`` says; None: not told.
        device_for: bytes of a device that has room for so many rows, None where no device has;
            None: not told.

    Raises:
        ValueError: no row has room.
    """

    most_rows: int
    device_bytes: int | None = None
    device_for: Callable[[int], int | None] | None = None

    def __post_init__(self) -> None:
        if self.most_rows < 1:
            raise ValueError(f"most_rows must be at least 1, got {self.most_rows}")

    def bytes_for(self, n_rows: int) -> int | None:
        """Of a device with room for so many rows; None where no device has, or it is not told."""
        return None if self.device_for is None else self.device_for(n_rows)
