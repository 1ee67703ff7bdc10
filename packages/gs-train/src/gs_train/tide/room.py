# SPDX-License-Identifier: Apache-2.0
"""How many rows of a batch a device has room for, beside slots."""

from __future__ import annotations

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
        row_bytes: more that the device must have for each further row.

    Raises:
        ValueError: no row has room.
    """

    most_rows: int
    device_bytes: int | None = None
    row_bytes: int = ROW_BYTES

    def __post_init__(self) -> None:
        if self.most_rows < 1:
            raise ValueError(f"most_rows must be at least 1, got {self.most_rows}")

    def bytes_for(self, n_rows: int) -> int | None:
        """Of a device with room for so many rows; None where it is not told."""
        if self.device_bytes is None:
            return None
        return self.device_bytes + max(0, n_rows - self.most_rows) * self.row_bytes
