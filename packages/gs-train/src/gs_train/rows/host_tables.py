# SPDX-License-Identifier: Apache-2.0
"""The tables in host memory that hold rows and their optimizer state, all of one length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

import gs_pinned
from gs_train.rows.attributes import appearance_shapes, columns
from gs_train.rows.replacement import Replacement
from gs_train.rows.saved_state import MOMENTS

_BLOCK_BYTES = 64 << 20


class HostTables:
    """Values, two moments and, where rows sleep, the step of each row's last update.

    What a device reads is page-locked, the rest never is. All four grow in place and have the same
    number of rows.

    Args:
        n_rows: rows to begin with; everything is zero.
        k: K of ``shN``; a row of values, and of moments, is 3 + 3K floats.
        sleeps: keep the step of the last update.
        is_locked: page-lock the values.
        is_state_locked: page-lock the rest, too.
        capacity: the most rows ever; None for as many as the machine's memory holds.

    Raises:
        MemoryError: the memory is not there.
    """

    def __init__(
        self,
        n_rows: int,
        k: int,
        *,
        sleeps: bool,
        is_locked: bool,
        is_state_locked: bool = False,
        capacity: int | None = None,
    ) -> None:
        # A table has no field without elements.
        fields = {name: shape for name, shape in appearance_shapes(k).items() if math.prod(shape)}

        def table(is_locked: bool, width: int = 3 + 3 * k, **options: Any) -> gs_pinned.Table:
            pinned: Any = "auto" if is_locked else False
            return gs_pinned.Table(n_rows, width, pinned=pinned, capacity=capacity, **options)

        self.values = table(is_locked, fields=fields)
        self.moments = tuple(table(is_state_locked, fields=fields) for _ in MOMENTS)
        self.steps = table(is_state_locked, 1, dtype="int32") if sleeps else None
        self._all = [self.values, *self.moments]
        if self.steps is not None:
            self._all.append(self.steps)

    @property
    def n_rows(self) -> int:
        """N."""
        return self.values.rows

    def adam_params(self) -> list[Tensor]:
        """The values as an optimizer takes them."""
        return list(columns(self.values.torch()).values())

    def adam_state(self) -> dict[str, Any]:
        """The rest as ``gs_adam.HostAdam`` adopts it."""
        state: dict[str, Any] = {
            key: list(columns(table.torch()).values())
            for key, table in zip(MOMENTS, self.moments, strict=True)
        }
        if self.steps is not None:
            state["last_step"] = self.steps.torch()[:, 0]
        return state

    def replace(self, change: Replacement, values: Tensor, *, step: int) -> None:
        """Put new rows in places, with zero moments and last updated in ``step``.

        Nobody may be reading or writing the tables.

        Args:
            change: its lists are where ``values`` are.
            values: (A, width) float32, on the CPU or a CUDA device.

        Raises:
            MemoryError: the memory is not there, or beyond the capacity. The tables are as they
                were.
        """
        self._grow(change.n_after, step)
        placed = change.placed.cpu()
        kept = change.moved_from.cpu(), change.moved_to.cpu()
        again = placed[placed < change.n_before]  # others have been appended as they shall be
        for table in self._all:
            _move(table, *kept)
            if table is not self.values:
                _fill(table, again, step if table is self.steps else 0)
        gs_pinned.scatter(values, change.placed, self.values)
        self.values.wait()
        if change.n_after < change.n_before:
            for table in self._all:
                table.truncate(change.n_after)

    def _grow(self, n_rows: int, step: int) -> None:
        """Append rows, with zero values and moments, last updated in ``step``."""
        before = self.n_rows
        try:
            for table in self._all:
                count = n_rows - before
                _append_filled(table, max(0, count), step if table is self.steps else 0)
        except BaseException:
            for table in self._all:
                table.truncate(min(before, table.rows))
            raise

    def write(self, rows: Mapping[str, Tensor], ids: Tensor | None = None) -> None:
        """Write some attributes' values of rows ``ids``, or of all; returns when they are written.

        Args:
            rows: (R, ...) or (N, ...) by attribute, all on the device where ``ids`` are.
        """
        table = self.values
        sources = {n: v.detach() for n, v in rows.items() if n in table.layout.fields}
        if not sources:
            return
        if ids is not None:
            gs_pinned.scatter({n: v.contiguous() for n, v in sources.items()}, ids, table)
        else:
            for part in row_blocks(self.n_rows, table.layout.row_bytes):
                # A block at a time, because sources may be strided and are packed first.
                packed = {name: values[part].contiguous() for name, values in sources.items()}
                gs_pinned.scatter(packed, part, table)
        table.wait()

    def permute(self, order: Tensor) -> None:
        """Make row ``order[i]`` ((N,) on the CPU) row i, with all that belongs to it."""
        for table in self._all:
            table.permute(order)

    def wait(self) -> None:
        """Wait until no transfer reads or writes a row."""
        for table in self._all:
            table.wait()

    def close(self) -> None:
        """Give the memory back once no view is left."""
        for table in self._all:
            table.close()


def _append_filled(table: gs_pinned.Table, count: int, value: int) -> None:
    """Add rows of one value. Memory that rows have left is not zero, so it has to be written."""
    filled: Tensor | None = None
    for part in row_blocks(count, table.layout.row_bytes):
        if filled is None:
            filled = table.torch().new_full((part.stop, table.width), value)
        table.append(filled[: part.stop - part.start])


def _move(table: gs_pinned.Table, source: Tensor, target: Tensor) -> None:
    """Copy rows to other places; the lists are on the CPU and have no row in common."""
    for part in row_blocks(len(source), table.layout.row_bytes):
        rows = table.torch().new_empty((part.stop - part.start, table.width))
        gs_pinned.scatter(gs_pinned.gather(table, source[part], rows), target[part], table)


def _fill(table: gs_pinned.Table, ids: Tensor, value: int) -> None:
    """Write one value to rows; the list is on the CPU."""
    row = table.torch().new_full((1, table.width), value)
    gs_pinned.scatter(row, ids, table, slots=torch.zeros_like(ids))


def row_blocks(n_rows: int, row_bytes: int) -> Iterator[slice]:
    """Runs of rows of 64 MiB at most: what is staged or packed at once."""
    size = max(1, _BLOCK_BYTES // row_bytes)
    for start in range(0, n_rows, size):
        yield slice(start, min(n_rows, start + size))
