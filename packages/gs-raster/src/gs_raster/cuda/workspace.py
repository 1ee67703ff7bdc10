# SPDX-License-Identifier: Apache-2.0
"""Memory that calls use one after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from gs_raster.cuda.place import Place


class Workspace:
    """Memory that calls use one after the other: each call writes over what the call before left.

    Calls that share a workspace must run on one stream. A workspace is empty at first, and is
    replaced by a larger one where it does not suffice.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self._device: torch.device | None = None
        self._address = self._n_bytes = 0

    def __repr__(self) -> str:
        return f"Workspace({self._n_bytes} bytes)"

    @property
    def n_bytes(self) -> int:
        """Bytes that the workspace holds."""
        return self._n_bytes

    def release(self) -> None:
        """Give the memory back to torch, behind what is enqueued."""
        self._memory, self._address, self._n_bytes = None, 0, 0

    def span(self, n_bytes: int, at: Place) -> tuple[int, int]:
        """Address and bytes of at least ``n_bytes``, for work on torch's current stream."""
        if n_bytes > self._n_bytes or self._device != at.device:
            self.release()  # before more is taken
            self._memory, self._device = at.workspace(n_bytes), at.device
            self._address, self._n_bytes = self._memory.data_ptr(), n_bytes
        return self._address, self._n_bytes
