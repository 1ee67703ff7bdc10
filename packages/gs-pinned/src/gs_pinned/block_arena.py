# SPDX-License-Identifier: Apache-2.0
"""Blocks of a store in host memory, on their way to and from the disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gs_pinned.block_store import BlockStore
from gs_pinned.layout import DTYPES
from gs_pinned.store_results import BlockTicket
from gs_pinned.table import Table

__all__ = ["BlockArena", "Transfer"]

Ints = NDArray[np.int64]

_TOGETHER = 32
"""Blocks of one ticket: few enough that the first ones are there early."""


@dataclass(frozen=True, eq=False)
class Transfer:
    """Blocks that a store reads into places, or writes from places.

    Attributes:
        blocks: (n,) their numbers.
        places: (n,) where.
        is_write: or a read.
    """

    ticket: BlockTicket
    blocks: Ints
    places: Ints
    is_write: bool


class BlockArena:
    """A place for each of some blocks, ``block_rows`` rows of every plane.

    Args:
        store: that blocks come from and go to.
        n_places: at least 1.
        pinned: as for :class:`Table`.

    Attributes:
        tables: of each plane, with a place as a row.

    Raises:
        TypeError: a plane of the store that no table can hold.
        MemoryError: the memory is not there.
    """

    def __init__(self, store: BlockStore, n_places: int, pinned: Any) -> None:
        for plane in store.planes:
            if plane.dtype not in DTYPES:
                raise TypeError(
                    f"planes of store must be of {', '.join(DTYPES)}, got {plane.dtype} of "
                    f"{plane.name}"
                )
        self._store = store
        self._block_rows = store.block_rows
        self.tables = [
            Table(
                n_places, self._block_rows * plane.width, plane.dtype,
                capacity=n_places, pinned=pinned,
            )
            for plane in store.planes
        ]  # fmt: skip
        self._rows = {
            plane.name: table.numpy().reshape(-1, plane.width)
            for plane, table in zip(store.planes, self.tables, strict=True)
        }

    def read(self, blocks: Ints, places: Ints) -> Iterator[Transfer]:
        """Begin to read blocks into places that nothing else uses until the transfers are done."""
        for some, at in _parts(blocks, places):
            ticket = self._store.read_async(some, out=self._rows, at=at * self._block_rows)
            yield Transfer(ticket, some, at, is_write=False)

    def write(self, blocks: Ints, places: Ints, counts: Ints, step: int) -> Iterator[Transfer]:
        """Begin to write blocks from places that do not change until the transfers are done."""
        for some, at, rows in _parts(blocks, places, counts):
            first = at * self._block_rows
            ticket = self._store.write_async(some, self._rows, rows, at=first, step=step)
            yield Transfer(ticket, some, at, is_write=True)

    def close(self) -> None:
        """Give the memory back; no transfer may be under way."""
        self._rows.clear()
        for table in self.tables:
            table.close()


def _parts(*lists: Ints) -> Iterator[tuple[Ints, ...]]:
    for first in range(0, len(lists[0]), _TOGETHER):
        yield tuple(one[first : first + _TOGETHER] for one in lists)
