# SPDX-License-Identifier: Apache-2.0
"""Rows that change places with rows in device memory, both ways over the link at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gs_pinned import _core
from gs_pinned.launch import blocks, is_checked, keep_until_passed, note_written, place_of
from gs_pinned.operands import count_of
from gs_pinned.table import Table

__all__ = ["exchange"]


def exchange(
    tables: Sequence[Table],
    arrays: Sequence[Any],
    stored: Any,
    loaded: Any,
    slots: Any,
    *,
    stream: Any = None,
    max_blocks: int = 8,
) -> None:
    """Write rows of arrays to tables and fill their slots with other rows.

    ``arrays[k][slots[i]] = tables[k][loaded[i]]`` for every i, after the last S of these slots have
    been written to their tables: ``tables[k][stored[j]] = arrays[k][slots[L - S + j]]``. A row
    leaves while its successor in the slot is on its way, so both directions of the link are equally
    busy. Two transfers on two streams do not reach that.

    Args:
        tables: one or more, of equal numbers of rows.
        arrays: (C, W) of its table's width and dtype for each, all on one device, contiguous rows.
            No two of all tables and arrays share memory.
        stored: (S,) int32 or int64 rows of the tables, each once, S at most L.
        loaded: (L,) rows of the tables, none of which is in ``stored``.
        slots: (L,) rows of the arrays, each once. All three have one type, on the arrays' device.
        stream: as for :func:`gather`.
        max_blocks: multiprocessors used at most. The default fills the link both ways.

    Raises:
        As :func:`gather` and :func:`scatter`. Launches enqueued before a failed launch go on. Where
        the kernel meets an id out of range, the row in that slot stays. With pageable tables, a row
        that would leave under such an id is lost if another row takes its slot.

    Asynchrony: as :func:`gather`.
    Cost: L rows over the link one way and S rows the other way, in one launch for up to four tables
        with accesses of the same width.

    >>> import numpy as np
    >>> table, array = Table(4, 1), np.array([[7], [8]], "f4")
    >>> exchange([table], [array], np.array([3]), np.array([0]), np.array([1]))
    >>> table.numpy().ravel(), array.ravel()
    (array([0., 0., 0., 8.], dtype=float32), array([7., 0.], dtype=float32))
    """
    for name, listed in (("tables", tables), ("arrays", arrays)):
        if not isinstance(listed, list | tuple):
            raise TypeError(f"{name} must be a list or a tuple, got {type(listed).__name__}")
    if not tables or len(tables) != len(arrays):
        raise ValueError(
            f"arrays must be one for each of one or more tables, got {len(arrays)} for "
            f"{len(tables)}"
        )
    for k, table in enumerate(tables):
        if not isinstance(table, Table):
            raise TypeError(f"tables[{k}] must be a Table, got {type(table).__name__}")
    if len({table.rows for table in tables}) > 1:
        raise ValueError(
            f"tables must have equal numbers of rows, got {[table.rows for table in tables]}"
        )
    n_stored, n_loaded = count_of(stored, "stored"), count_of(loaded, "loaded")
    if n_stored > n_loaded:
        raise ValueError(f"stored must be at most the {n_loaded} rows of loaded, got {n_stored}")
    if count_of(slots, "slots") != n_loaded:
        raise ValueError(
            f"slots must be one for each of the {n_loaded} loaded rows, got {len(slots)}"
        )
    where, handle = place_of(arrays[0], stream, "arrays[0]")
    # Before the call: where a later launch fails, earlier ones are on their way.
    keep_until_passed((stored, loaded, slots, *arrays), where, handle)
    _core.exchange_rows(
        [table.native_rows() for table in tables],
        list(arrays),
        stored,
        n_stored,
        loaded,
        n_loaded,
        slots,
        stream=handle,
        max_blocks=blocks(max_blocks),
        checked=is_checked(),
    )
    note_written(arrays)
