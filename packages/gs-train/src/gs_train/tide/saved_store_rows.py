# SPDX-License-Identifier: Apache-2.0
"""The Gaussians of a store, read a chunk of rows at a time with their keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gs_pinned import BlockStore
from gs_train.blocks.stored_rows import StoredRows
from gs_train.rows.saved_rows import KeyedRows
from gs_train.tide.trouble import store_trouble

_ROWS_IN_SLOTS = 1 << 15
"""Rows of the store that are in memory at once, with their moments."""


class SavedStoreRows:
    """A `SavedRows` of a snapshot of a store; rows that sleep are brought up to date.

    Args:
        folder: of the store.
        snapshot: number; None: the newest.

    Attributes:
        snapshot: number.

    Raises:
        InputError: there is no such store or snapshot, or it is damaged.
    """

    def __init__(self, folder: Path, snapshot: int | None = None) -> None:
        self._folder = folder
        with store_trouble(folder, is_read_only=True):
            if snapshot is None:
                with BlockStore.open(folder, read_only=True) as store:
                    snapshot = max(store.snapshots)
            self.snapshot = snapshot
            with self._opened() as rows:
                self.n_rows, self.n_bases = len(rows), rows.appearance_width // 3 - 1

    def chunks(self, chunk_rows: int) -> Iterator[KeyedRows]:
        """See `SavedRows.chunks`: whole blocks, block after block.

        Memory: that of 65,536 rows with their moments, and of a chunk.
        """
        with store_trouble(self._folder, is_read_only=True), self._opened() as rows:
            at_once = max(1, chunk_rows // rows.block_rows)
            for keys, some in rows.pieces(at_once=at_once):
                yield KeyedRows(keys, some)

    def _opened(self) -> StoredRows:
        store = BlockStore.open(self._folder, snapshot=self.snapshot, read_only=True)
        try:
            n = max(2, _ROWS_IN_SLOTS // store.block_rows)
            return StoredRows(store, slots=n, host_blocks=n)
        except BaseException:
            store.close()
            raise
