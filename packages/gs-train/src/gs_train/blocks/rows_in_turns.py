# SPDX-License-Identifier: Apache-2.0
"""Batches that see more rows in blocks than the device has room for: their rows come in turns.

A row's number here is that of its block times the rows of a block, and its row within the block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gs_train.blocks.partition import Ids
from gs_train.blocks.stored_looks import StoredTables, seen_in_slots
from gs_train.blocks.stored_steps import StoredSteps
from gs_train.machine.host_copies import to_device
from gs_train.renderers import Renderer, Rows
from gs_train.renderers.culling import Cameras
from gs_train.rows.attributes import NAMES


@dataclass(frozen=True, eq=False)
class Census:
    """The rows that a batch sees, without their values.

    Attributes:
        rows: (U,) int64 sorted numbers of the rows that some camera sees.
        keys: (U,) int32.
        mask: (U, ceil(V / 32)) int32: bit v says that camera v sees the row.
        counts: (V,) rows of each camera.
    """

    rows: Tensor
    keys: Tensor
    mask: Tensor
    counts: tuple[int, ...]


class RowsInTurns:
    """Rows in blocks that are found, looked at and updated some at a time.

    Args:
        stored: tables with the slots.
        steps: takes their steps.
    """

    def __init__(self, stored: StoredTables, steps: StoredSteps) -> None:
        self._stored = stored
        self._steps = steps

    @property
    def most_blocks(self) -> int:
        """That a part of an `update` may have."""
        return self._stored.cache.n_slots

    @torch.no_grad()
    def census(
        self,
        blocks: Ids,
        cameras: Cameras,
        renderer: Renderer,
        *,
        most_rows: int,
        rects: NDArray[np.int64] | None = None,
    ) -> Census:
        """Find the rows that cameras see. Nothing that is stored changes, no block stays in use.

        Args:
            blocks: (n,) sorted, with all that hold rows that are seen.
            renderer: by whose rules.
            most_rows: blocks come so many at a time that they hold no more rows, one at least.
            rects: (V, 4), see :func:`gs_cull.cull`.

        Memory: 12 bytes a row that is seen, and the masks.
        """
        self._steps.need_whole()
        stored, most = self._stored, max(1, most_rows // self._stored.block_rows)
        found, counts = [], np.zeros(len(cameras), np.int64)
        for some in stored.turns(blocks, most) or [blocks]:
            slots = stored.cache.bring(some)
            try:
                part, mask, n_seen = seen_in_slots(stored, some, slots, cameras, renderer, rects)
                keys = stored.keys(part.places)
                counts += n_seen()
            finally:
                stored.cache.release(some, changed=False)
            # Blocks are sorted, and so are their rows.
            firsts = np.zeros(int(slots.max(initial=0)) + 1, np.int64)
            firsts[slots] = (some - slots) * stored.block_rows
            moved = to_device(firsts, stored.device)[part.places // stored.block_rows]
            found.append((part.places + moved, keys, mask))
        rows, all_keys, masks = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Census(rows, all_keys, masks, tuple(counts.tolist()))

    @torch.no_grad()
    def values(self, rows: Tensor) -> dict[str, Tensor]:
        """All attributes of some rows after the last step. Nothing that is stored changes.

        Args:
            rows: (R,) int64 sorted numbers.
        """
        self._steps.need_whole()
        stored, found = self._stored, []
        for blocks, some in self._by_turn(rows):
            slots = stored.cache.bring(blocks)
            try:
                found.append(stored.values(_places(some, blocks, slots, stored.block_rows)))
            finally:
                stored.cache.release(blocks, changed=False)
        if len(found) == 1:
            return found[0]
        return {name: torch.cat([one[name] for one in found]) for name in NAMES}

    @torch.no_grad()
    def update(
        self,
        parts: Iterable[tuple[Tensor, Rows]],
        rates: Mapping[str, float],
        later: float = 1.0,
    ) -> None:
        """Take a step of some rows.

        Args:
            parts: (R,) int64 sorted numbers of rows in at most `most_blocks` blocks, those of a
                block in one part; and their gradients by attribute.
            rates, later: see `StoredRows.update`.

        Raises:
            As `StoredRows.update`.
        """
        self._steps.begin(rates, later)
        for rows, gradients in parts:
            blocks = self._blocks_of(rows)
            self._steps.update(blocks, partial(_places, rows, blocks), gradients)
        self._steps.end()

    def _blocks_of(self, rows: Tensor) -> Ids:
        """(n,) the blocks that rows lie in. Waits for the device."""
        blocks: Ids = (rows // self._stored.block_rows).unique_consecutive().cpu().numpy()
        return blocks

    def _by_turn(self, rows: Tensor) -> Iterable[tuple[Ids, Tensor]]:
        """Blocks that fit the slots together, and the rows in these."""
        turns = self._stored.turns(self._blocks_of(rows))
        if len(turns) <= 1:
            return [(turns[0] if turns else np.zeros(0, np.int64), rows)]
        firsts = np.array([blocks[0] for blocks in turns[1:]]) * self._stored.block_rows
        ends = torch.searchsorted(rows, to_device(firsts, rows.device)).tolist()
        return list(zip(turns, rows.tensor_split(ends), strict=True))


def _places(rows: Tensor, blocks: Ids, slots: NDArray[np.int32], block_rows: int) -> Tensor:
    """(R,) int64 places of rows of blocks in slots."""
    both = to_device(np.stack([blocks, (slots - blocks) * block_rows]), rows.device)
    return rows + both[1][torch.searchsorted(both[0], rows // block_rows)]
