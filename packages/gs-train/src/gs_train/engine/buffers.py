# SPDX-License-Identifier: Apache-2.0
"""Device memory for rows that come and go, taken once and reused."""

from __future__ import annotations

import torch
from torch import Tensor

HEADROOM = 1.25
"""Buffers are taken this much larger than needed, so that they seldom grow."""


class RowBuffer:
    """(slots, width) float32 that grows in coarse steps.

    Contents are lost when it grows or is released, which happens between batches only.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self._width = width
        self._device = device
        self._rows = torch.empty((0, width), device=device)

    @staticmethod
    def bytes(n_slots: int, width: int) -> int:
        """Bytes that a buffer takes once so many slots were asked for."""
        return 4 * width * int(n_slots * HEADROOM)

    @property
    def n_bytes(self) -> int:
        """Bytes held."""
        return self._rows.numel() * self._rows.element_size()

    def of(self, n_slots: int) -> Tensor:
        """The whole buffer, of at least ``n_slots`` slots."""
        if n_slots > len(self._rows):
            self.release()  # before more is asked for
            grown = int(n_slots * HEADROOM)
            self._rows = torch.empty((grown, self._width), device=self._device)
        return self._rows

    def release(self) -> None:
        """Give the memory back."""
        self._rows = torch.empty((0, self._width), device=self._device)
