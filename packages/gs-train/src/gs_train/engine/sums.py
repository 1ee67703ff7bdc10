# SPDX-License-Identifier: Apache-2.0
"""Gradients of the rows of a batch, in memory that is taken once and reused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gs_train.engine.buffers import RowBuffer
from gs_train.rows.attributes import GEOMETRY, GEOMETRY_WIDTH, SHAPES, columns


class Sums(NamedTuple):
    """Gradients of U rows.

    Attributes:
        whole: all values that follow, in one piece.
        geometry: (U, ...) by attribute.
        appearance: (U, W).
        by_attribute: (U, ...) of both, that of appearance as columns.
    """

    whole: Tensor
    geometry: Mapping[str, Tensor]
    appearance: Tensor
    by_attribute: Mapping[str, Tensor]


class BatchSums:
    """Holds the gradients of one batch at a time.

    Batches of equally many rows get the same tensors.

    Args:
        width: W, floats of a row of appearance; 0 where its gradients are kept elsewhere.
        device: of the sums.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self._width = width
        self._buffer = RowBuffer(GEOMETRY_WIDTH + width, device)
        self._sums: Sums | None = None

    @staticmethod
    def bytes(n_rows: int, width: int) -> int:
        """Bytes that are held after a batch of so many rows."""
        return RowBuffer.bytes(n_rows, GEOMETRY_WIDTH + width)

    @property
    def n_bytes(self) -> int:
        """Bytes held."""
        return self._buffer.n_bytes

    def zeros(self, n_rows: int) -> Sums:
        """Of a batch that begins; what the batch before had is gone."""
        if self._sums is None or self._sums.appearance.shape[0] != n_rows:
            self._sums = None  # before more memory is asked for
            self._sums = self._cut(self._buffer.of(n_rows)[:n_rows].view(-1), n_rows)
        self._sums.whole.zero_()
        return self._sums

    def release(self) -> None:
        """Give the memory back."""
        self._sums = None
        self._buffer.release()

    def _cut(self, whole: Tensor, n_rows: int) -> Sums:
        """The rows of appearance come first: they are wide, and stay aligned."""
        sizes = [self._width, *(math.prod(SHAPES[name]) for name in GEOMETRY)]
        appearance, *parts = whole.split([n_rows * size for size in sizes])
        geometry = {
            name: part.view(n_rows, *SHAPES[name])
            for name, part in zip(GEOMETRY, parts, strict=True)
        }
        rows = appearance.view(n_rows, self._width)
        return Sums(whole, geometry, rows, geometry | (columns(rows) if self._width else {}))
