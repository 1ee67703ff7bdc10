# SPDX-License-Identifier: Apache-2.0
"""Blocks of which only some are in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gs_cull.arrays import Array, check_kind, is_torch, on_host
from gs_cull.bounds import Layout
from gs_cull.checks import shown

if TYPE_CHECKING:
    from gs_cull.blocks import Blocks


class ResidentBlocks:
    """Blocks of which only some are present, each in a slot; see :meth:`Blocks.in_slots`.

    Attributes:
        blocks: the bounds of all blocks.
        block_in_slot: (S,) int32, -1 where a slot is empty.
    """

    def __init__(self, blocks: Blocks, slots: Any) -> None:
        if not hasattr(blocks, "in_slots"):
            raise TypeError(f"blocks must be Blocks, got {shown(blocks)}")
        if blocks.order is not None:
            raise ValueError(
                "blocks must be stored in order, got permuted rows: build them with sort=False"
            )
        host = on_host(slots, "slots")
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
        filled = np.flatnonzero(present).astype(np.int32)
        slot_of_block[host[present]] = filled
        self.blocks = blocks
        self.block_in_slot: Array
        self.block_in_slot, self._slot_of_block, self._filled, self._present = (
            _like(blocks.scale, ids)
            for ids in (host.astype(np.int32), slot_of_block, filled, host[present].astype("i4"))
        )

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
        self.blocks.fit((means, scales, quats), self._present, stored=self._filled)

    def layout(self, means: Array) -> Layout:
        """As :meth:`Blocks.layout`."""
        check_kind(means=means)
        n_rows = len(self.block_in_slot) * self.blocks.block_size
        if len(means) != n_rows:
            raise ValueError(
                f"means must have {n_rows} rows, {len(self.block_in_slot)} slots of "
                f"{self.blocks.block_size}, got {len(means)}"
            )
        blocks = self.blocks
        return Layout(
            blocks.n_rows,
            blocks.block_size,
            None,
            self.block_in_slot,
            self._slot_of_block,
            blocks.bounds,
        )


def _like(reference: Array, ids: np.ndarray) -> Array:
    """Ids of the kind and on the device of the reference."""
    if not is_torch(reference):
        return ids
    import torch

    return torch.from_numpy(ids).to(reference.device)
