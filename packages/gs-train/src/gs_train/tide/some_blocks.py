# SPDX-License-Identifier: Apache-2.0
"""Some blocks of a store, looked at without the others."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gs_train.blocks.partition import Ids
from gs_train.blocks.stored_rows import StoredRows
from gs_train.renderers import Renderer, View
from gs_train.rows.shown import Point, RowsOfView, ShownRows
from gs_train.tide.trouble import store_trouble


class SomeBlocks:
    """A `ShownRows` of the rows of some blocks. What views see, and where rows lie, is of all.

    Args:
        every: the rows of all blocks.
        rows: these, in blocks.
        blocks: (n,) different numbers.
    """

    def __init__(self, every: ShownRows, rows: StoredRows, blocks: Ids) -> None:
        self._every = every
        self._rows = rows
        self._blocks = blocks

    @property
    def device(self) -> torch.device:
        """See `ShownRows.device`."""
        return self._every.device

    @property
    def n_rows(self) -> int:
        """Of the blocks."""
        return sum(self._rows.store.counts(self._blocks))

    @property
    def sh_degree(self) -> int:
        """See `ShownRows.sh_degree`."""
        return self._every.sh_degree

    def within(self, view: View, renderer: Renderer) -> RowsOfView:
        """See `ShownRows.within`."""
        return self._every.within(view, renderer)

    def chunks(self, chunk_rows: int) -> Iterator[dict[str, Tensor]]:
        """See `ShownRows.chunks`: block after block of these."""
        at_once = max(1, chunk_rows // self._rows.block_rows)
        store = self._rows.store
        with store_trouble(store.path, is_read_only=store.is_read_only):
            for _, rows in self._rows.pieces(self._blocks, at_once=at_once):
                for start in range(0, max(1, len(rows["means"])), chunk_rows):
                    part = slice(start, start + chunk_rows)
                    yield {name: values[part].cpu() for name, values in rows.items()}

    def reaching(self, low: Point, high: Point) -> ShownRows:
        """See `ShownRows.reaching`."""
        return self

    def some_means(self) -> Tensor:
        """See `ShownRows.some_means`."""
        return self._every.some_means()

    def close(self) -> None:
        """Close all rows."""
        self._every.close()
