# SPDX-License-Identifier: Apache-2.0
"""Blocks of which only some are in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gs_cull.arrays import Array, is_torch, on_host, true_ids
from gs_cull.cameras import Cameras

if TYPE_CHECKING:
    from gs_cull.blocks import Blocks


class ResidentBlocks:
    """Blocks of which only some are present, each in a slot; see :meth:`Blocks.in_slots`.

    Attributes:
        blocks: the bounds of all blocks.
        block_in_slot: (S,) int32, -1 where a slot is empty.
    """

    def __init__(self, blocks: Blocks, slots: Any) -> None:
        if blocks.order is not None:
            raise ValueError(
                "blocks must be stored in order, got permuted rows: build them with sort=False"
            )
        host = on_host(slots)
        if host.ndim != 1 or host.dtype.kind not in "iu":
            raise TypeError(f"slots must be (S,) whole numbers, got {host.dtype} {host.shape}")
        if len(host) and not (host.min() >= -1 and host.max() < len(blocks)):
            raise IndexError(
                f"slots must be from -1 to {len(blocks) - 1}, got {host.min()} to {host.max()}"
            )
        present = host >= 0
        if len(np.unique(host[present])) != present.sum():
            raise ValueError("slots must name each block at most once, got a block twice")
        slot_of_block = np.full(len(blocks), -1, np.int32)
        slot_of_block[host[present]] = np.flatnonzero(present)
        self.blocks = blocks
        self.block_in_slot: Array = host.astype(np.int32)
        self._slot_of_block: Array = slot_of_block
        if is_torch(blocks.scale):
            import torch

            device = blocks.scale.device
            self.block_in_slot = torch.from_numpy(self.block_in_slot).to(device)
            self._slot_of_block = torch.from_numpy(slot_of_block).to(device)

    @property
    def activated(self) -> bool:
        """As :attr:`Blocks.activated`."""
        return self.blocks.activated

    @property
    def scale(self) -> Array:
        """As :attr:`Blocks.scale`."""
        return self.blocks.scale

    @property
    def n_not_finite(self) -> int:
        """Rows of the blocks present without a finite mean or scale. Synchronises on CUDA."""
        present = self._slot_of_block >= 0
        return int(self.blocks.not_finite[present].sum())

    def refit(self, means: Array, scales: Array, quats: Array) -> None:
        """Bound the blocks present anew, from arrays of S * block_size rows; resets their slack."""
        self.layout(means)
        which = true_ids(self.block_in_slot >= 0)
        present = self.block_in_slot[which]
        self.blocks.fit((means, scales, quats), present, stored=which)

    def views(self, cameras: Cameras, options: Any) -> Array:
        """As :meth:`Blocks.views`."""
        return self.blocks.views(cameras, options)

    def layout(self, means: Array) -> tuple[Any, ...]:
        """As :meth:`Blocks.layout`."""
        n_rows = len(self.block_in_slot) * self.blocks.block_size
        if len(means) != n_rows:
            raise ValueError(
                f"means must have {n_rows} rows, {len(self.block_in_slot)} slots of "
                f"{self.blocks.block_size}, got {len(means)}"
            )
        blocks = self.blocks
        return (blocks.n_rows, blocks.block_size, None, self.block_in_slot, self._slot_of_block)
