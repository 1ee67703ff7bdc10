# SPDX-License-Identifier: Apache-2.0
"""Rows that take the place of others in device memory, both ways over the link at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gs_pinned import _core
from gs_pinned.launch import blocks, is_checked, keep_until_passed, place_of
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
    store_stream: Any = None,
    load_stream: Any = None,
    piece_rows: int = 1 << 18,
    max_blocks: int = 16,
    store_blocks: int | None = None,
) -> None:
    """Write rows of arrays to tables and fill their slots with other rows.

    ``arrays[k][slots[i]] = tables[k][loaded[i]]`` for every i, after the last S of these slots have
    been written to their tables: ``tables[k][stored[j]] = arrays[k][slots[L - S + j]]``. Rows move
    in pieces: while one arrives the next one leaves.

    Args:
        tables: one or more, of equal numbers of rows.
        arrays: (C, W) of its table's width and dtype for each, all on one device, contiguous rows.
        stored: (S,) int32 or int64 rows of the tables, each once, S at most L.
        loaded: (L,) rows of the tables. None of those in ``stored``.
        slots: (L,) rows of the arrays, each once. All three of one type, where the arrays are.
        store_stream, load_stream: as ``stream`` of :func:`gather`, for each way; the load stream
            waits for the store stream, piece by piece. None on the CPU.
        piece_rows: rows of a piece.
        max_blocks: multiprocessors used at most, each way.
        store_blocks: of those, for the way to the tables; None: as many. Kernels that write to host
            memory faster than the link takes it hold up whatever else uses the device's memory:
            where something renders beside them, few blocks are better.

    Raises:
        As :func:`gather` and :func:`scatter`. What was enqueued before a launch failed goes on.

    Asynchrony: as :func:`gather`. ``slots`` and what they hold are read on both streams.
    Cost: L rows over the link one way and S the other, in one call of few launches a piece.

    >>> import numpy as np
    >>> table, array = Table(4, 1), np.array([[7], [8]], "f4")
    >>> exchange([table], [array], np.array([3]), np.array([0]), np.array([1]))
    >>> table.numpy().ravel(), array.ravel()
    (array([0., 0., 0., 8.], dtype=float32), array([7., 0.], dtype=float32))
    """
    if not tables or len(tables) != len(arrays):
        raise ValueError(
            f"arrays must be one for each of one or more tables, got {len(arrays)} for "
            f"{len(tables)}"
        )
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
    if piece_rows < 1:
        raise ValueError(f"piece_rows must be at least 1, got {piece_rows}")
    most = blocks(max_blocks)
    where, storing = place_of(arrays[0], store_stream)
    _, loading = place_of(arrays[0], load_stream)
    # Before the call: where a later piece fails, earlier ones are on their way.
    keep_until_passed((stored, slots, *arrays), where, storing)
    keep_until_passed((loaded, slots, *arrays), where, loading)
    _core.exchange_rows(
        [table.native_rows() for table in tables],
        list(arrays),
        stored,
        n_stored,
        loaded,
        n_loaded,
        slots,
        piece=piece_rows,
        store_stream=storing,
        load_stream=loading,
        store_blocks=most if store_blocks is None else blocks(store_blocks, "store_blocks"),
        load_blocks=most,
        checked=is_checked(),
    )
