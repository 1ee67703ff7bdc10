# SPDX-License-Identifier: Apache-2.0
"""Memory of the exchanges of one round, taken once and reused by later rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from gs_train.renderers.records import RECORD_WORDS, SplatRecords

_STEP = 4096  # rows


class RoundBuffers:
    """Memory that one round has for itself. Contents are lost when more is asked for.

    Args:
        device: of all.
        gradient_words: of a splat's gradient.
    """

    def __init__(self, device: torch.device, gradient_words: int) -> None:
        self._sent = _Records(device)
        self._arrived = _Records(device)
        self._back = _Rows(gradient_words, torch.float32, device)

    def sent(self, n: int) -> SplatRecords:
        """Records on their way out."""
        return self._sent.of(n)

    def arrived(self, n: int) -> SplatRecords:
        """Records on their way in."""
        return self._arrived.of(n)

    def back(self, n: int) -> Tensor:
        """(n, gradient_words) float32: gradients of the records that were sent."""
        return self._back.of(n)

    @property
    def n_bytes(self) -> int:
        """Bytes held."""
        return self._sent.n_bytes + self._arrived.n_bytes + self._back.n_bytes

    def release(self) -> None:
        """Give the memory back."""
        for memory in (self._sent, self._arrived, self._back):
            memory.release()


def room_for(n: int) -> int:
    """Rows that buffers have room for once n were asked for."""
    return -(-(n + n // 8) // _STEP) * _STEP


class _Rows:
    """(rows, width) that grow in coarse steps."""

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self._rows = torch.empty((0, width), dtype=dtype, device=device)

    @property
    def n_bytes(self) -> int:
        return self._rows.numel() * self._rows.element_size()

    def of(self, n: int) -> Tensor:
        if n > self._rows.shape[0]:
            self.release()  # before more is asked for
            self._rows = self._rows.new_empty((room_for(n), self._rows.shape[1]))
        return self._rows[:n]

    def release(self) -> None:
        self._rows = self._rows.new_empty((0, self._rows.shape[1]))


class _Records:
    """Room for records."""

    def __init__(self, device: torch.device) -> None:
        self._words = _Rows(RECORD_WORDS, torch.int32, device)
        self._keys = _Rows(1, torch.int32, device)

    @property
    def n_bytes(self) -> int:
        return self._words.n_bytes + self._keys.n_bytes

    def of(self, n: int) -> SplatRecords:
        return SplatRecords(self._words.of(n), self._keys.of(n))

    def release(self) -> None:
        self._words.release()
        self._keys.release()
