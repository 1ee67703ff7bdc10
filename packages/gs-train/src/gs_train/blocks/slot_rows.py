# SPDX-License-Identifier: Apache-2.0
"""Where the rows of blocks in slots lie."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gs_train.blocks.box_kernels import lay_out
from gs_train.blocks.host_copies import to_device
from gs_train.blocks.partition import Ids
from gs_train.machine.has_triton import has_triton


class SlotRows:
    """All rows of some blocks in slots.

    Args:
        slots: (n,) of each block.
        counts: (n,) rows of each block.
        block_rows: rows of a slot.
        device: of the tables.

    Attributes:
        n_rows: R, added up.
        layout: (3, n) int64 on the device: slots, counts, and counts added up before each block.

    Asynchrony: enqueued on torch's current stream; waits for nothing.
    """

    def __init__(
        self, slots: NDArray[np.int32], counts: Ids, block_rows: int, device: torch.device
    ) -> None:
        layout = lay_out(slots, counts)
        self.block_rows = block_rows
        self.n_rows = int(layout[1, -1] + layout[2, -1]) if len(slots) else 0
        self.layout = to_device(layout, device)

    def __len__(self) -> int:
        return self.layout.shape[1]

    def places(self) -> Tensor:
        """(R,) int64 places in the tables, block after block. On CUDA with Triton one kernel."""
        if self.layout.is_cuda and has_triton() and self.n_rows:
            from gs_train.blocks.block_triton import places

            return places(self.layout, self.n_rows, self.block_rows)
        slots, counts, before = self.layout
        firsts = slots * self.block_rows - before
        n = self.n_rows
        return torch.repeat_interleave(firsts, counts, output_size=n) + torch.arange(
            n, device=firsts.device
        )
