# SPDX-License-Identifier: Apache-2.0
"""Where the rows of blocks in slots lie, and which rows they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gs_train.blocks.box_kernels import lay_out
from gs_train.blocks.partition import Ids
from gs_train.machine.has_triton import has_triton
from gs_train.machine.host_copies import to_device


class ListedRows(NamedTuple):
    """All rows of some blocks, block after block.

    Attributes:
        places: (R,) int64 in the tables.
        ids: (R,) int32, 0 to R - 1.
        keys: (R,) int32.
        last_step: (R,) int32, a copy.
        mask: (R, words) int32 of each row's block.
    """

    places: Tensor
    ids: Tensor
    keys: Tensor
    last_step: Tensor
    mask: Tensor


class SlotRows:
    """All rows of some blocks in slots.

    Args:
        slots: (n,) of each block.
        counts: (n,) rows of each block.
        block_rows: rows of a slot.
        device: of the tables.
        masks: (n, words) uint32 of each block; None: without words.

    Attributes:
        n_rows: R, added up.
        layout: (3 + words, n) int64 on the device: slots, counts, counts added up before each
            block, and the words of the masks.

    Asynchrony: enqueued on torch's current stream; waits for nothing.
    """

    def __init__(
        self,
        slots: NDArray[np.int32],
        counts: Ids,
        block_rows: int,
        device: torch.device,
        masks: NDArray[np.uint32] | None = None,
    ) -> None:
        words = np.empty((len(slots), 0), np.int32) if masks is None else masks.view(np.int32)
        layout = lay_out(slots, counts, words)
        self.block_rows = block_rows
        self.n_rows = int(layout[1, -1] + layout[2, -1]) if len(slots) else 0
        self.layout = to_device(layout, device)

    def __len__(self) -> int:
        return self.layout.shape[1]

    def places(self) -> Tensor:
        """(R,) int64 places in the tables, block after block. On CUDA with Triton one kernel."""
        if self._has_kernels:
            from gs_train.blocks.block_triton import places

            return places(self.layout, self.n_rows, self.block_rows)
        slots, counts, before = self.layout[:3]
        firsts = slots * self.block_rows - before
        n = self.n_rows
        return torch.repeat_interleave(firsts, counts, output_size=n) + torch.arange(
            n, device=firsts.device
        )

    def listed(self, tables: Mapping[str, Tensor]) -> ListedRows:
        """The rows, of which ``tables`` hold keys and last steps. On CUDA with Triton one kernel.

        Args:
            tables: by plane.
        """
        if self._has_kernels:
            from gs_train.blocks.block_triton import listed

            return ListedRows(*listed(self.layout, self.n_rows, self.block_rows, tables))
        places, n = self.places(), self.n_rows
        masks = self.layout[3:].t().int()
        return ListedRows(
            places,
            torch.arange(n, dtype=torch.int32, device=places.device),
            tables["key"].view(-1).index_select(0, places),
            tables["last_step"].view(-1).index_select(0, places),
            torch.repeat_interleave(masks, self.layout[1], 0, output_size=n),
        )

    def count(self, marks: Tensor) -> Tensor:
        """(n,) int32, how many rows of each block are marked. On CUDA with Triton one kernel.

        Args:
            marks: (R,) bool.
        """
        if self._has_kernels:
            from gs_train.blocks.block_triton import count

            return count(self.layout, marks)
        blocks = torch.arange(len(self), device=marks.device)
        of_row = torch.repeat_interleave(blocks, self.layout[1], output_size=self.n_rows)
        return torch.zeros_like(blocks, dtype=torch.int32).index_add_(0, of_row, marks.int())

    @property
    def _has_kernels(self) -> bool:
        return self.layout.is_cuda and has_triton() and self.n_rows > 0
