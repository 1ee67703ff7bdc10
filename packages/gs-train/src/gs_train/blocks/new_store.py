# SPDX-License-Identifier: Apache-2.0
"""Stores of a scene's rows that begin: rows, boxes, and the first snapshot."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Self

import numpy as np
import torch
from torch import Tensor

from gs_train.blocks.block_planes import AT_ONCE, NewRows
from gs_train.blocks.box_fits import BOXED
from gs_train.blocks.boxes import BlockBoxes
from gs_train.blocks.partition import Partition
from gs_train.blocks.sleep_reach import SleepReach
from gs_train.blocks.stored_state import scene_state
from gs_train.renderers import Rows


class NewStore:
    """A store of rows that have taken no step, some blocks at a time; a context manager.

    Args:
        path: an empty folder, or none yet.
        k: harmonics of a row beside the first.
        n_blocks: blocks that there will be.
        block_rows: most rows of a block.
        betas, eps: Adam's, of all steps.
        ceilings: of ``means`` and ``scales``: no step has a larger rate.

    Raises:
        OSError, ValueError: see :meth:`gs_pinned.BlockStore.create`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        k: int,
        n_blocks: int,
        block_rows: int,
        betas: tuple[float, float],
        eps: float,
        ceilings: Mapping[str, float],
    ) -> None:
        self._rows = NewRows(path, k, block_rows)
        self._boxes = BlockBoxes(n_blocks)
        self._reach = {name: SleepReach(betas, eps, ceilings[name]) for name in BOXED}
        self._k, self._betas, self._eps = k, betas, eps
        self._lock = threading.Lock()

    def add(self, first: int, partition: Partition, rows: Rows, keys: Tensor) -> None:
        """Write rows as blocks from number ``first`` on.

        Args:
            partition: of these rows, into blocks of at most ``block_rows``.
            rows: all attributes of R rows, on the CPU.
            keys: (R,) int32, which no other row of the store has.

        Raises:
            OSError: the drive is full, or errs.

        Threads: several may add blocks at once.
        Memory: that of 32 blocks beside the rows.
        """
        for start in range(0, len(partition), AT_ONCE):
            stop = min(start + AT_ONCE, len(partition))
            places = slice(int(partition.offsets[start]), int(partition.offsets[stop]))
            chosen = torch.from_numpy(partition.rows[places])
            blocks, counts = np.arange(first + start, first + stop), partition.counts[start:stop]
            own = {name: values[chosen] for name, values in rows.items()}
            self._rows.write(blocks, counts, own, keys[chosen])
            self._fit(blocks, counts, own)

    def _fit(self, blocks: np.ndarray, counts: np.ndarray, rows: Rows) -> None:
        boxes = BlockBoxes(len(blocks))
        values = {name: rows[name].numpy() for name in BOXED}
        boxes.fit_still(np.arange(len(blocks)), counts, **values, reaches=self._reach)
        with self._lock:
            for name, array in boxes.state().items():
                getattr(self._boxes, name)[blocks] = array

    def finish(self) -> None:
        """Make the first snapshot.

        Raises:
            OSError: the system refused.
        """
        state = scene_state(self._k, self._betas, self._eps, self._boxes.state(), self._reach, {})
        self._rows.store.snapshot(state)

    def close(self) -> None:
        """Without `finish` what was written does not open."""
        self._rows.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
