# SPDX-License-Identifier: Apache-2.0
"""Memory that one drawing after the other lies in."""

from __future__ import annotations

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.place import Place


class Workspace:
    """Memory that one drawing after the other lies in: each writes over the drawing before.

    Drawings that share a workspace are drawn on one stream. A workspace is empty at first, and is
    replaced by a larger one where it does not suffice. Sorting is replayed from a CUDA graph where
    drawings before, in the same place, had the same room and about as many rows.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self._device: torch.device | None = None
        self._n_words = 0
        self._turn = 0
        self._graphs: _core.GraphCache | None = None

    def __repr__(self) -> str:
        return f"Workspace({self.n_bytes} bytes)"

    @property
    def n_bytes(self) -> int:
        """Bytes that the workspace holds."""
        return 4 * self._n_words

    @property
    def turn(self) -> int:
        """How often memory was taken."""
        return self._turn

    @property
    def graphs(self) -> _core.GraphCache:
        """Graphs of sorting drawings here."""
        if self._graphs is None:
            self._graphs = _core.GraphCache()
        return self._graphs

    def release(self) -> None:
        """Give the memory back to torch, behind what is enqueued."""
        self._memory, self._n_words = None, 0

    def take(self, n_bytes: int, at: Place) -> Tensor:
        """Float32 memory of at least ``n_bytes``, for work on torch's current stream."""
        n_words = -(-n_bytes // 4)
        if self._memory is None or n_words > self._n_words or self._device != at.device:
            self.release()  # before more is taken
            if self._device != at.device:
                self._graphs = None  # another device may give memory at the addresses of this one
            self._memory, self._device, self._n_words = at.empty(n_words), at.device, n_words
        self._turn += 1
        return self._memory
